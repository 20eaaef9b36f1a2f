"""List the words of the synthetic screens; the tokeniser is trained on them too."""

from __future__ import annotations


def _split_words(text: str) -> tuple[str, ...]:
    return tuple(" ".join(text.split()).split(", "))


COLOURS = {
    "red": "#e02424",
    "green": "#1f9d3a",
    "blue": "#2563eb",
    "yellow": "#f5c518",
    "purple": "#8b2fc9",
    "orange": "#f07c12",
    "black": "#1c1c1c",
    "white": "#fdfdfd",
    "gray": "#8c9096",
    "pink": "#f48fc0",
}
SHAPES = ("square", "circle", "triangle", "diamond", "cross", "ring", "hexagon", "bar", "arrow")
THINGS = _split_words("""
    mug, cup, lamp, chair, shirt, book, bag, hat, shoe, clock, bottle, pen, phone, watch, box, ball, plate, spoon,
    fork, knife, sofa, table, bed, pillow, towel, soap, brush, radio, toy, car, bike, kite, drum, guitar, umbrella,
    glove, sock, scarf, jacket, coat, dress, belt, wallet, candle, basket, vase, mirror, desk, tent
""")
SETTINGS = _split_words("""
    wifi, bluetooth, sound, volume, display, brightness, battery, location, camera, microphone, notifications,
    privacy, security, storage, updates, backup, keyboard, mouse, printer, language, dark mode, night light,
    airplane mode, hotspot, vibration, wallpaper, lock, sync, alarm, music, photos, mail, calendar, maps, power,
    network
""")
BUTTONS = _split_words("""
    ok, cancel, save, delete, edit, open, close, next, back, send, search, buy, add, cart, checkout, submit, login,
    help, home, menu, play, pause, stop, start, yes, no, apply, reset, print, share, copy, paste, undo, done,
    continue, skip
""")
SYMBOLS = ("star", "heart", "moon", "bell", "drop", "bolt", "leaf", "key", "house")
PEOPLE = ("anna", "tom", "ben", "mary", "lisa", "kate", "sam", "john", "paul", "nora")
KEYS = ("left", "right", "up", "down")

VALUES = (*THINGS, *PEOPLE, *COLOURS)  # of fields
READING = tuple(dict.fromkeys((*THINGS, *PEOPLE, *COLOURS, *SYMBOLS, *BUTTONS, *(w for w in SETTINGS if " " not in w))))
COMMON = _split_words("""
    click, open, pick, take, select, turn, type, search, drag, move, put, press, read, card, button, link, field,
    tile, block, outline, screen, number, word, what, does, say, name, page, into, then, done, arrow, describe,
    where, cart, item, price
""")  # of instructions and thoughts

# Other words of instructions, thoughts and answers.
PHRASES = (
    "I click the tile.",
    "I drag the piece to the outline.",
    "I press the key.",
    "I type the word in the field.",
    "I turn on the row.",
    "I turn off the setting.",
    "I scroll down.",
    "I add the item to the cart.",
    "I pick the tile.",
    "Take the tile.",
    "Clear the tiles: pick three of a kind.",
    "Search for the word.",
    "Remove the item from the cart.",
    "I want the item.",
    "The task is done.",
    "I am done.",
    "I am finished.",
    "I look at the screen.",
    "I open the page.",
    "I search for the item.",
    "Click the tile.",
    "Click any of the tiles.",
    "Click all the tiles.",
    "Click the button.",
    "Click the field.",
    "Drag the piece into its outline.",
    "Press the arrow key.",
    "Type the word.",
    "Turn on and turn off.",
    "Open the card.",
    "Describe the screen.",
    "Read the word.",
    "Read the number.",
    "What is the colour of this?",
    "What is the label at the point?",
    "Where is the shape?",
    "Is it on or off?",
    "Put it into the box.",
    "Buy the item and go to checkout.",
    "Add the item to the cart, then open the cart.",
    "Merge the numbers.",
    "Move left, right, up or down.",
    "Reach the number.",
    "Select the symbol on the board.",
    *_split_words("""
        Done:, yes, no, none, empty, big, small, large, first, second, third, last, top, bottom, middle, item,
        product, price, total, order, name, page, list, row, game, score, board, tile, piece, shape, outline,
        symbol, toggle, switch, setting, with, that, from, for, not, same, and
    """),
)


def tokenizer_corpus() -> list[str]:
    """List the texts that the tokeniser is trained on: every word, inside a sentence and at a beginning."""
    words = [*COMMON, *COLOURS, *SHAPES, *SYMBOLS, *PEOPLE, *THINGS, *SETTINGS, *BUTTONS, *KEYS]
    lines = [f"{form} {form}" for word in words for form in (word, word.capitalize())]
    lines += [f" {word}s" for word in (*SHAPES, *SYMBOLS, *THINGS)]
    return lines * 4 + list(PHRASES) * 12 + [f" {word}" for word in words] * 12
