"""The words that the message generator (`data.py`) is made of.

Two sets that share nothing: `TRAIN` and `HELD_OUT`. A slot in braces is filled by the generator.
A slot that names a field of the answer also decides whether that field is known: a message
without `{amount}` has the answer `"amount": null`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Phrases:
    """Everything one split may draw from."""

    first_names: tuple[str, ...]
    last_names: tuple[str, ...]
    adjectives: tuple[str, ...]  # of products
    nouns: tuple[str, ...]
    openings: tuple[str, ...]
    facts: tuple[str, ...]  # what was ordered; slots decide which fields are known
    issues: dict[str, tuple[str, ...]]
    requests: dict[str, tuple[str, ...]]
    distractors: tuple[str, ...]  # true, and of no use: other dates, sums, orders, people
    closings: tuple[str, ...]
    footers: tuple[str, ...]


TRAIN = Phrases(
    first_names=(
        "Anna", "Zoë", "Jürgen", "Søren", "Łukasz", "François", "María", "Niamh", "Emre", "Priya",
        "Kenji", "Mei", "Olena", "Tomáš", "João", "Ingrid", "Kwame", "Fatima", "Giulia", "Björn",
        "Chloé", "Dmitri", "Aylin", "Håkon", "Sinéad", "Rafael", "Yuki", "Amara", "Petra", "Oscar",
        "Ritva", "Nikolaos", "Linh", "Samuel", "Grace", "Iñaki", "Paula", "Henrik", "Nadia",
        "Carlos", "Marek", "Sofia", "Daniel", "Leila", "Anton", "Beatriz", "Jonas", "Ewa",
        "Hiroshi", "Camille",
    ),
    last_names=(
        "Müller", "O'Brien", "Lindqvist", "Kowalski", "Dupont", "García", "Yılmaz", "Sharma",
        "Tanaka", "Chen", "Shevchenko", "Novák", "Silva", "Nygård", "Mensah", "Al-Sayed", "Rossi",
        "Åkesson", "Lefèvre", "Ivanov", "Demir", "Haugen", "Murphy", "Fernandes", "Sato", "Okafor",
        "Schmidt", "Virtanen", "Papadopoulos", "Nguyen", "Taylor", "Brown", "Etxeberria",
        "de Vries", "Costa", "Jansen", "Kaya", "Larsen", "Popescu", "Horvat", "Keller", "Romero",
        "Singh", "Walsh", "Ricci", "Nowak", "Berg", "Marino",
    ),
    adjectives=(
        "walnut", "wireless", "steel", "folding", "electric", "leather", "wooden", "small", "large",
        "blue", "black", "green", "portable", "ceramic", "cotton", "digital", "heavy",
    ),
    nouns=(
        "desk lamp", "charger", "running shoes", "frying pan", "yoga mat", "espresso grinder",
        "wool blanket", "keyboard", "garden hose", "phone case", "rain jacket", "bread knife",
        "water filter", "camping stove", "office chair", "headphones", "picture frame",
        "bicycle pump", "tea kettle", "wall clock", "curtains", "board game", "travel mug",
        "standing desk", "toothbrush", "wallet", "soldering iron", "baby monitor", "plant pot",
        "bath towel", "robot vacuum", "sleeping bag", "hiking boots", "coffee machine",
        "night light", "cutting board", "umbrella", "toaster", "mirror", "dog leash", "paint set",
        "ladder", "scarf", "tripod", "blender", "doormat",
    ),
    openings=(
        "Hello,", "Hi there,", "Dear support team,", "Good morning,", "Bonjour,", "Guten Tag,",
        "Hola,", "Hallo,", "Dzień dobry,", "To whom it may concern,", "hey", "Hi,",
        "Dear Sir or Madam,", "Hej,", "Salut,", "Dear team,", "Good day,", "Merhaba,", "",
        "Subject: my order", "Subject: complaint", "Re: order", "My name is {customer}.",
        "This is {customer} writing.", "Customer {customer} wrote in the chat:",
        "Caller: {customer}", "Name: {customer}", "Hi, {customer} here.", "Hello, I am {customer}.",
        "Message from {customer}:", "Customer: {customer}", "Chat with {customer}:",
        "{customer} writes:", "Mail from {customer}",
    ),
    facts=(
        "I ordered {n} x {product} on {date} and paid {amount}. The order number is {order_id}.",
        "On {date} I bought {word} {product} from your shop for {amount}, order {order_id}.",
        "Order {order_id}: {product}, quantity {n}, {amount}, placed {date}.",
        "My order {order_id} of {date} was for {n} pieces of the {product}, {amount} in sum.",
        "I paid {amount} for {n} x {product}. Order date: {date}. Order no. {order_id}.",
        "Order number: {order_id}\nItem: {product}\nQuantity: {n}\nTotal: {amount}\nDate: {date}",
        "Date: {date}\nOrder: {order_id}\nAmount: {amount}\nItem: {product}\nNumber of pieces: {n}",
        "I purchased the {product} ({n} units) on {date}, order {order_id}; {amount} was charged.",
        "For {amount} I got {word} of your {product}. Order {order_id}, dated {date}.",
        "We ordered {word} units of the {product} on {date}. Reference {order_id}, total {amount}.",
        "The order is {order_id}, made on {date}: {n} times the {product} for {amount}.",
        "I gave you {amount} for {word} {product} on {date} (order {order_id}).",
        "I bought {n} x {product} on {date} and paid {amount}. I can't find the order number.",
        "I paid {amount} for {word} {product} on {date}.",
        "Item: {product}\nPieces: {n}\nTotal: {amount}\nOrdered: {date}",
        "On {date} I got {n} of your {product}. The price was {amount}.",
        "{date}: {word} {product} for {amount}, bought in your shop.",
        "My {product} ({n} units) cost {amount} on {date}.",
        "I ordered {word} {product} on {date}. The order number is {order_id}.",
        "This is about {n} x {product} from order {order_id} of {date}.",
        "On {date} I ordered {n} times the {product}. Order {order_id}.",
        "Item: {product}\nOrder number: {order_id}\nQuantity: {n}\nDate: {date}",
        "It concerns {n} pieces of the {product}, ordered on {date}, number {order_id}.",
        "Order {order_id} was made on {date}: {product}, {word} pieces.",
        "{n} x {product} were bought by me on {date} with the number {order_id}.",
        "{n} pieces of the {product}, bought on {date}, order {order_id}.",
        "My {product}, {n} pieces, was ordered on {date} under {order_id}.",
        "{n} x {product} cost me {amount} on {date}, order {order_id}.",
        "I ordered {n} x {product} on {date}.", "On {date} I bought {word} of your {product}.",
        "It is about my {product}, {n} pieces, ordered on {date}.",
        "{date}, {product}, quantity {n}.",
        "{n} pieces of the {product} came with order {order_id}, dated {date}.",
        "{n} {product} for {amount}, that was my order {order_id} of {date}.",
        "{n} x {product}, bought on {date}.",
    ),
    issues={
        "late": (
            "It is late.", "The parcel is two weeks late.", "The delivery is very late.",
            "It is late again.", "The parcel is late and nobody knows why.",
            "I am still waiting for it.", "I have been waiting for a month.",
            "We are waiting and waiting.", "I wait and wait for it.", "It has still not arrived.",
            "The parcel has not arrived yet.", "Nothing has arrived.", "It did not arrive in time.",
            "It has not been delivered.", "Nothing was delivered until today.",
            "The delivery is delayed.", "The shipment is delayed again.",
            "I never received the parcel.", "It should have come days ago.",
        ),
        "damaged": (
            "It arrived broken.", "It is broken.", "One side is broken.",
            "It was already broken when I opened the box.", "It came damaged.",
            "The item is damaged.", "The surface is damaged.", "It got damaged on the way.",
            "It has a crack.", "The item is cracked.", "There is a crack on one side.",
            "It is scratched.", "There are scratches on it.", "It does not turn on.",
            "It is not working.", "It stopped working after one day.", "It is defective.",
            "The item is faulty and does not work at all.",
        ),
        "wrong": (
            "I received the wrong item.", "It is the wrong product.", "You sent the wrong size.",
            "The colour is wrong.", "The size is wrong.", "A wrong article came.",
            "I was sent the wrong model.", "This is the wrong version.",
            "You packed the wrong thing.", "I got a different model.",
            "It is a different colour from the one I ordered.",
            "The item in the parcel is a different one.", "You sent me something else.",
            "I got something else instead.", "What came is not what I ordered.",
            "It is not the one that I ordered.", "Another item came instead.",
            "In the box was another product.",
        ),
        "incomplete": (
            "A part is missing.", "Parts are missing.", "The cable is missing.",
            "Something is missing.", "Some pieces are missing from the box.",
            "The manual and a part are missing.", "Three pieces are missing.",
            "The package is incomplete.", "The set is incomplete.", "My order came incomplete.",
            "The lid was not in the box.", "The screws were not in the box.",
            "The battery was not in the parcel.", "Only half of it came.",
            "Only some of the pieces came.", "I got only a part of it.",
            "Only a part of it was delivered.",
            "Only half of the order came.", "Just a part of the parcel came.",
            "The order is not complete.", "Not everything was in the parcel.",
        ),
        "overcharged": (
            "I was charged twice.", "You charged too much.", "You charged me two times.",
            "My card was charged too much.", "I was charged an extra fee.",
            "You charged a fee for shipping.", "I was billed two times for it.",
            "You billed me too much.", "I was billed for more than I bought.",
            "The bill is too high.", "The invoice is too high.",
            "The price on the bill is wrong and too high.", "The discount was not applied.",
            "I did not get the discount.", "My discount is not on the bill.",
            "The coupon code was not applied.", "The price is higher than in the shop.",
            "I paid too much, more than agreed.",
        ),
    },
    requests={
        "refund": (
            "Please refund me.", "I want my money back.", "I would like a refund.",
            "Please send the money back.", "I expect a full refund.", "Can I get a refund?",
            "Give me my money back, please.", "Kindly refund the order.", "Refund, please.",
            "I demand a refund.", "Please pay me back.", "Return my money, please.",
            "I prefer a refund.", "Please refund the amount.", "Could you refund this?",
            "I hope for a quick refund.",
        ),
        "replacement": (
            "Please send a new one.", "I would like a replacement.", "Can you replace it?",
            "Please send me a replacement.", "I need a new one soon.", "Please exchange it.",
            "Could you ship another one?", "I want it replaced.", "A replacement would be fine.",
            "Please send it again.", "I want a new one.", "Send a replacement, please.",
            "Could I have a replacement?", "Kindly replace it.", "I ask for an exchange.",
            "Please arrange a replacement.",
        ),
        "information": (
            "Can you tell me what is going on?", "Please let me know the status.",
            "What happens next?", "Please give me an update.",
            "Could you look into it and tell me?", "Any news?", "Please explain this to me.",
            "I only want to know what happened.", "Please inform me.", "What is going on?",
            "Could you tell me more?", "Please send me an update.", "I would like to know why.",
            "Let me know, please.", "Can you check the status?", "Tell me what to do now.",
        ),
    },
    distractors=(
        "I already called you on {other_date}.", "My neighbour {other_name} saw the courier.",
        "My earlier order {other_order} was fine.", "Shipping was {other_amount} on top.",
        "I have spent {other_amount} in your shop so far.", "My phone number is {phone}.",
        "I am on holiday from {other_date}.", "You can reach me at {phone}.",
        "I spoke to {other_name} from your team.", "The ticket you opened is {other_order}.",
        "A friend paid only {other_amount} elsewhere.", "Your last mail came on {other_date}.",
        "I have been a customer for {other_n} years.", "I have written {other_n} mails already.",
        "Sorry for my English.", "I am very disappointed!", "This is not urgent.",
        "{other_name} from support knows about it.", "On {other_date} I talked to {other_name}.",
        "I saw it for {other_amount} at another store.", "Delivery cost me {other_amount}.",
        "{other_name} told me to write to you.", "My wife {other_name} was at home all day.",
        "Please don't confuse it with order {other_order}.",
        "I also placed order {other_order}, which is okay.", "The old price was {other_amount}.",
        "I moved house on {other_date}.", "{other_n} weeks ago I sent a first mail.",
        "You can call {other_name} at {phone}.", "I need it before {other_date}.",
        "Usually I am happy with you.", "I left a voice message.", "My budget is {other_amount}.",
        "The gift card is worth {other_amount}.",
    ),
    closings=(
        "Best regards, {customer}", "Thanks, {customer}", "Kind regards\n{customer}", "{customer}",
        "Yours sincerely,\n{customer}", "Cheers, {customer}", "Merci, {customer}", "- {customer}",
        "Thank you.", "Thanks!", "", "Best,\n{customer}", "Mit freundlichen Grüßen\n{customer}",
        "Yours, {customer}", "Best wishes from {customer}", "Thank you very much\n{customer}",
        "With kind regards, {customer}", "Have a nice day.", "Good bye, {customer}",
        "See you, {customer}", "Waiting for your answer.", "Signed, {customer}",
    ),
    footers=(
        "", "", "", "", "Sent from my phone", "Tel. {phone}", "Mobile: {phone}",
        "> On {other_date} support wrote:\n> We got your message.",
        "---\nForwarded by {other_name} on {other_date}",
        "> {other_name} from support wrote:\n> We are looking into it.",
        "---\nHandled by {other_name}, {other_date}",
        "> On {other_date} {other_name} wrote:\n> Dear customer, thanks for your mail.",
    ),
)  # fmt: skip


HELD_OUT = Phrases(
    first_names=(
        "Léa", "Matthias", "Agnieszka", "Andrés", "Orla", "Deniz", "Ananya", "Haruto", "Xiu",
        "Taras", "Zdeněk", "Inês", "Sigrid", "Abena", "Omar", "Chiara", "Göran", "Élodie", "Viktor",
        "Mustafa", "Eleanor", "Pekka", "Eleni", "Thanh",
    ),
    last_names=(
        "Weiß", "Fitzgerald", "Bergström", "Wiśniewski", "Moreau", "Hernández", "Öztürk", "Patel",
        "Watanabe", "Zhang", "Bondarenko", "Dvořák", "Gonçalves", "Solberg", "Owusu", "Haddad",
        "Bianchi", "Sjögren", "Bélanger", "Petrov", "Wilson", "Korhonen", "Georgiou", "van Dijk",
    ),
    adjectives=(
        "red", "white", "silver", "foldable", "plastic", "glass", "compact", "heated", "modern",
        "classic",
    ),
    nouns=(
        "bookshelf", "computer mouse", "winter gloves", "pressure cooker", "foam roller", "pillow",
        "monitor stand", "lawn sprinkler", "tablet sleeve", "swimming goggles", "salad bowl",
        "air purifier", "side table", "speaker", "photo album", "bike helmet", "rice cooker",
        "alarm clock", "shower head", "card game", "hair dryer", "backpack", "cordless drill",
        "beach tent",
    ),
    openings=(
        "Hello support,", "Good evening,", "Dear customer service,", "Ciao,", "Greetings,",
        "Subject: problem with an order", "I'm {customer}.", "From: {customer}",
        "Chat transcript with {customer}:", "Hello, my name is {customer}.",
        "Hello, this is {customer}.", "Dear shop,",
    ),
    facts=(
        "I bought {n} x {product} for {amount} on {date}, order number {order_id}.",
        "Order {order_id}, placed on {date}: {n} x {product}, {amount} in total.",
        "On {date} I placed order {order_id} with you for {word} {product} and paid {amount}.",
        "Ordered: {date}\nOrder: {order_id}\nProduct: {product}\nPieces: {n}\nPaid: {amount}",
        "I spent {amount} on {n} pieces of the {product}, ordered on {date} as {order_id}.",
        "My order of {date} has the number {order_id}: the {product}, {word} units, {amount}.",
        "I ordered {n} x {product} from you on {date} and I paid {amount} for it.",
        "Product: {product}\nQuantity: {n}\nPaid: {amount}\nDate of order: {date}",
        "I am writing about {n} x {product}. I ordered on {date}, the order number is {order_id}.",
        "{n} x {product} were ordered on {date}, the order number is {order_id}.",
        "I ordered {word} {product} from you on {date}.",
        "My {product}, {n} units, was bought on {date}.",
    ),
    issues={
        "late": (
            "The package is very late.", "It should have arrived last week.",
            "It still has not been delivered.", "I keep waiting for it.",
            "I have not received anything.",
        ),
        "damaged": (
            "It was broken on arrival.", "The front is cracked.", "It does not work.",
            "It has scratches everywhere.", "It came out of the box damaged.",
        ),
        "wrong": (
            "I got the wrong product.", "You sent the wrong colour.",
            "A different item was in the box.", "This is not what I ordered.",
            "You delivered something else.",
        ),
        "incomplete": (
            "One part is missing.", "Two screws are missing.", "The parcel was incomplete.",
            "The charger was not in the box.", "Only a part of the order came.",
        ),
        "overcharged": (
            "You charged my card twice.", "I was billed too much.",
            "The price on the invoice is too high.", "My discount code was not applied.",
            "You charged an extra fee.",
        ),
    },
    requests={
        "refund": (
            "I ask for a refund.", "Please give me my money back.", "I'd like my money back.",
            "Please refund the full sum.",
        ),
        "replacement": (
            "Please replace it.", "I'd like a replacement, please.", "Can you send a new one?",
            "Please ship a replacement.",
        ),
        "information": (
            "Please tell me what happened.", "Can you give me an update?", "What is the status?",
            "Please let me know what is going on.",
        ),
    },
    distractors=(
        "I phoned you on {other_date} about this.", "My colleague {other_name} can confirm it.",
        "Another order, {other_order}, came without trouble.",
        "The postage was {other_amount} extra.", "In another shop it costs {other_amount}.",
        "Call me at {phone}.", "I will be away until {other_date}.",
        "{other_name} answered my first mail.", "I waited {other_n} days before writing.",
        "I really like your shop.",
    ),
    closings=(
        "Regards, {customer}", "Many thanks, {customer}", "Sincerely\n{customer}",
        "Greetings from {customer}", "Thank you, {customer}", "Thanks in advance.", "Bye",
    ),
    footers=(
        "", "", "Sent from my tablet", "Phone: {phone}",
        "> {other_name} wrote on {other_date}:\n> Thank you for your order.",
    ),
)  # fmt: skip
