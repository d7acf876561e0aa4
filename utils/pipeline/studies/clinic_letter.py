"""The letter that notebook 05's attacker knows, except for the name."""

LETTER = (
    "Write this letter in simple words. Dear {}, thank you for your visit to our clinic in the old "
    "town. We now have the results of the tests that our lab ran for you, and we'd like to explain "
    "them to you here in writing, so that you can read them in peace at home, and talk about them "
    "with your family."
)
