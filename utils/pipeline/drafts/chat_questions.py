"""Everyday questions to a chat model: what its draft model and Medusa heads are trained on.

Only questions. The model that is to be sped up writes the answers itself, so what is learned is
how this model writes. Held-out questions are about topics that training never sees.
"""

from __future__ import annotations

import random


def _topics(text: str) -> tuple[str, ...]:
    return tuple(" ".join(topic.split()) for topic in text.split(","))


FORMS = (
    "What is {}?",
    "Explain {} to a child.",
    "Explain {} in two short paragraphs.",
    "Write a short story about {}.",
    "Write a poem of eight lines about {}.",
    "List five facts about {}.",
    "List three advantages and three disadvantages of {}.",
    "Why is {} important?",
    "How did people come to think differently about {} over time?",
    "Give me some tips on how to learn more about {}.",
    "Write an email to a friend about {}.",
    "Describe {} in one paragraph.",
    "What should a beginner know about {}?",
    "What are common mistakes when people talk about {}?",
    "Write a dialogue between a teacher and a student about {}.",
    "Make a plan for a weekend that has to do with {}.",
    "Compare {} with something similar.",
    "Write a Python function that has something to do with {}.",
    "Summarize the history of {}.",
    "Ask me three quiz questions about {}, with the answers.",
)
TRAIN_TOPICS = _topics("""
    gravity, inflation, rain, baking bread, democracy, volcanoes, sleep, magnets, the tides,
    photosynthesis, memory, fire, rivers, vaccines, batteries, chess, healthy soil, the Moon, the
    human heart, glass, paper, salt, coffee, trains, bridges, libraries, the Roman Empire,
    dinosaurs, recycling, saving money, yoga, a lost dog, a lighthouse, space travel, prime numbers,
    sorting a list, computers, the internet, robots, museums, teamwork, friendship, moving to a new
    city, learning to swim, gardening, birds in winter, honey bees, wolves, elephants, the ocean,
    deserts, mountains, earthquakes, climate change, solar power, wind turbines, airplanes,
    bicycles, public transport, maps, calendars, clocks, probability, fractions, the alphabet,
    learning a language, poetry, jazz, painting, photography, theatre, cooking soup, breakfast,
    vegetables, chocolate, markets, taxes, job interviews, stage fright, exercise, stress,
    allergies, the brain
""")
HELD_OUT_TOPICS = _topics("""
    lightning, cheese, elections, glaciers, dreams, compasses, whales, tea, football, castles, the
    planet Mars, bacteria, triangles, reversing a string, telephones, kindness, camping, forests,
    electric cars, opera, pizza, insurance, public speaking, the immune system
""")


def chat_questions(split: str, count: int, seed: int = 0) -> list[str]:
    """Return `count` different questions of a split, "train" or "held_out", in random order.

    The same arguments give the same questions, on every machine.

    Raises:
        ValueError: unknown split, or more questions than there are.
    """
    topics = {"train": TRAIN_TOPICS, "held_out": HELD_OUT_TOPICS}.get(split)
    if topics is None:
        raise ValueError(f'split must be "train" or "held_out", got {split!r}.')
    questions = [form.format(topic) for topic in topics for form in FORMS]
    if not 0 <= count <= len(questions):
        raise ValueError(f"count must be 0 to {len(questions)} for {split!r}, got {count}.")
    return random.Random(f"{split} {seed}").sample(questions, count)
