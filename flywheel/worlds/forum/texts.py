"""What people write in the forum: titles with their first posts, replies, names."""

from __future__ import annotations

# board -> (title, icon of look.json, what it is about)
BOARDS = {
    "kitchen": ("Kitchen", "mug", "Recipes, bread, knives and pans"),
    "garden": ("Garden", "leaf", "Beds, balconies and what grows there"),
    "house": ("House and repair", "house", "Walls, pipes, tools"),
    "books": ("Books", "book", "What we read, and why"),
    "photos": ("Photography", "camera", "Cameras, light, pictures"),
    "music": ("Music", "sound", "Instruments, records, concerts"),
}
# board -> (title, first post, tags) of topics
TOPICS = {
    "kitchen": (
        ("Sourdough that does not rise", "My starter bubbles, yet the loaf stays flat. What am I missing?",
         ("bread", "beginner")),
        ("Which pan for eggs?", "Mine sticks since last month. Steel, iron or something coated?", ("tools", "advice")),
        ("Soup for twenty people", "We expect a crowd on Saturday. What keeps warm for hours?", ("recipe",)),
        ("Sharpening a bread knife", "Can it be done at home, or is it a job for a shop?", ("tools", "repair")),
        ("Lemons everywhere", "A friend left me a whole crate. Ideas beyond juice are welcome.", ("recipe", "fruit")),
        ("Coffee tastes bitter", "Same beans as before, new grinder. It used to be sweet.", ("advice",)),
        ("Freezing fresh herbs", "In oil or in water? Half of mine turned black.", ("herbs", "advice")),
        ("Cheap dinners for students", "Let us collect meals that cost next to nothing.", ("recipe", "beginner")),
        ("Rice without a cooker", "Ten minutes on the stove and it is glue. Help.", ("beginner",)),
        ("Old cast iron, new rust", "Found it in a cellar. Can I save it?", ("tools", "repair")),
        ("Pickles for the winter", "Share your jars: how much salt, how many days?", ("recipe", "winter")),
        ("Bread in a small oven", "It has no steam and one shelf. Does a pot help?", ("bread", "tools")),
    ),
    "garden": (
        ("Tomatoes on a balcony", "It faces north, four hours of sun. Is it worth a try?", ("vegetables", "beginner")),
        ("Slugs ate everything", "Forty lettuces in one night. What works without poison?", ("pests",)),
        ("When to cut the roses", "My neighbor says now, the book says March.", ("flowers", "winter")),
        ("Compost smells", "It is wet and it smells of eggs. Too much grass?", ("soil", "advice")),
        ("A hedge for birds", "Three meters high at most, berries in autumn.", ("animals", "advice")),
        ("Beans on a fence", "Which kind climbs best, and how far apart?", ("vegetables",)),
        ("Watering while on holiday", "Two weeks in July. Bottles, strings, or a friend?", ("advice", "summer")),
        ("Moss in the lawn", "It wins every year. Should I simply let it?", ("lawn",)),
        ("Seeds to swap", "I have far too many sunflowers. Who has peas?", ("seeds", "flowers")),
        ("Garlic in spring?", "I missed the autumn. Is there still a point?", ("vegetables", "beginner")),
        ("A pond in a barrel", "Half a wine barrel, one lily. How do I keep it clear?", ("water", "animals")),
        ("Frost on the young trees", "Minus eight is coming. Straw, cloth, or nothing?", ("trees", "winter")),
    ),
    "house": (
        ("The tap drips at night", "New washer, same drip, one drop every four seconds.", ("water", "repair")),
        ("Painting over dark blue", "How many coats of white does it take?", ("walls",)),
        ("A shelf for heavy books", "The wall sounds hollow. Which plugs hold?", ("walls", "tools")),
        ("Draft under the door", "I can feel it on my feet. What did you use?", ("winter", "advice")),
        ("First drill to buy", "For one flat and a few shelves. With a cord?", ("tools", "beginner")),
        ("Floor creaks in one spot", "Right beside the bed, of course.", ("floor", "repair")),
        ("Cold radiator upstairs", "The ones below are hot. Is it air?", ("heating", "winter")),
        ("Removing old wallpaper", "Four layers, the lowest is from 1950.", ("walls", "repair")),
        ("Which glue for a chair leg", "It came loose for the third time.", ("wood", "repair")),
        ("Damp in the cellar", "A white edge on the wall, it grows in autumn.", ("walls", "water")),
        ("Quiet fan for the bathroom", "The one I have sounds like a plane.", ("advice",)),
        ("Oil or wax for a table", "Oak, used every day by three children.", ("wood", "advice")),
    ),
    "books": (
        ("A long novel for the train", "Six hours each way, every second week.", ("novel", "advice")),
        ("Books you gave up on", "No shame here. Mine has 900 pages about whales.", ("talk",)),
        ("Crime from the north", "I have read the famous ones. Who else?", ("crime", "advice")),
        ("Reading aloud to children", "They are five and eight. What keeps both awake?", ("children",)),
        ("Poems to learn by heart", "Short ones first, my memory is rusty.", ("poems", "beginner")),
        ("Paper or screen?", "I changed my mind this year. What about you?", ("talk",)),
        ("Best book of the year", "One title each, and one sentence why.", ("talk", "winter")),
        ("History without dates", "I want to know how people lived.", ("history", "advice")),
        ("How do you mark a page?", "Folded corners are allowed. I think.", ("talk",)),
        ("A first book on stars", "For a patient twelve year old.", ("science", "children")),
        ("Translations that sing", "Which translator made you forget the original?", ("novel", "poems")),
        ("Reading club in January", "We choose the book by vote. Proposals, please.", ("club", "winter")),
    ),
    "photos": (
        ("First lens after the kit", "I take pictures of people, mostly indoors.", ("lenses", "beginner")),
        ("Snow looks gray", "Every picture of it. Is it the camera or me?", ("light", "winter")),
        ("Old film, still good?", "Ten rolls from 2009, kept in a drawer.", ("film",)),
        ("Birds from the window", "They are gone before I press. Tips?", ("animals", "advice")),
        ("How do you sort 40,000 pictures?", "By year? By place? I am lost.", ("computer", "advice")),
        ("Night sky above a town", "Is there any hope with so many lamps?", ("light", "night")),
        ("Tripod under one kilo", "For trains and long walks.", ("tools", "travel")),
        ("Black and white in December", "One picture a day. Who joins?", ("club", "winter")),
        ("Printing at home", "Is the ink really that expensive?", ("paper", "advice")),
        ("Portraits with one lamp", "Show me where you put it.", ("light", "people")),
        ("Dust on the sensor", "Three spots in every sky.", ("repair",)),
        ("A walk with one lens", "Forty millimeters for a whole month.", ("lenses", "club")),
    ),
    "music": (
        ("Learning the piano at forty", "Is it too late? My fingers say yes.", ("piano", "beginner")),
        ("Strings for a cold room", "They go flat every night.", ("guitar", "winter")),
        ("Concerts worth the journey", "Small halls, good sound. Where?", ("live", "travel")),
        ("Headphones that do not hurt", "I wear glasses, that is the trouble.", ("sound", "advice")),
        ("A record player for beginners", "Not a suitcase, please.", ("records", "beginner")),
        ("Singing in a choir", "I cannot read notes. Will they take me?", ("voice", "beginner")),
        ("Which drum for a flat", "My neighbors are patient, up to a point.", ("drums", "advice")),
        ("Songs for a long drive", "Eleven hours. We need about 150.", ("talk", "travel")),
        ("Repairing an accordion", "Two keys stay silent, one never stops.", ("repair",)),
        ("Jazz for people who fear it", "Where would you begin?", ("records", "talk")),
        ("Practice without noise", "After nine in the evening, in a small house.", ("piano", "advice")),
        ("Winter playlist", "One song each, quiet ones first.", ("club", "winter")),
    ),
}  # fmt: skip
REPLIES = {
    "kitchen": (
        "Give it more time. Twelve hours in the fridge changed everything for me.",
        "A pinch of salt at the start, not at the end.", "Lower the heat and put a lid on.",
        "My grandmother used butter for that, and she was right.", "Weigh it. Cups are a lottery.",
    ),
    "garden": (
        "Wait until the last frost, it is worth it.", "Coffee grounds helped here, a thin ring around each plant.",
        "Less water, more straw.", "Ask at the allotment, they always have too many.",
        "Mine did that too, and came back in May.",
    ),
    "house": (
        "Turn off the water first. I speak from experience.", "Sand it lightly between the coats.",
        "Measure twice, then let somebody else measure.", "The cheap one broke, the good one is from 1982.",
        "It was the valve here, five minutes of work.",
    ),
    "books": (
        "I read it twice, the second time was better.", "The first hundred pages are slow, then you cannot stop.",
        "Ask your library, ours orders almost anything.", "The audio version is wonderful, too.",
        "Short chapters make all the difference.",
    ),
    "photos": (
        "Add one stop of light and look again.", "Move closer, then closer again.",
        "Rent it for a weekend before you buy.", "The window is the best lamp you own.",
        "Keep the ten best of each year, the rest can wait.",
    ),
    "music": (
        "Ten minutes every day beat two hours on Sunday.", "Find a teacher who laughs.",
        "Borrow one first, most shops lend them.", "Listen with your eyes closed and decide then.",
        "It is never too late. I began at fifty six.",
    ),
}  # fmt: skip
ANYWHERE = (
    "Thank you, that is just what I needed.", "Same here, I would love to know.",
    "I tried this last winter and it worked.", "Could you show a picture?", "That did not help in my case, sadly.",
    "Good question. I will follow this.", "There was a long topic on this last year.",
    "It depends on how much you want to spend.", "I disagree, and I have done it for ten years.",
    "Start small, you can always add more.", "Let us know how it went.", "This made my day.",
    "Take your time, there is no hurry.", "Two friends of mine had the same trouble.",
    "I would ask an expert before you go on.", "Simple is best, as always.",
)  # fmt: skip
RUDE = (
    "Buy cheap watches at my shop, link in my profile.", "Only a fool would ask that.",
    "Win a free phone today, write to me at once.", "Nobody cares about this, go away.",
)  # fmt: skip
PEOPLE = (
    "birdsong", "carlotta", "dustjacket", "eastwind", "fernleaf", "grandpa_joe", "hazelnut", "inkpot", "juniper",
    "kettle", "lowtide", "marmalade", "northstar", "oldoak", "pebble", "quill", "redbrick", "saltmarsh", "thimble",
    "umbrella", "violet", "wanderer", "yarrow", "zigzag",
)  # fmt: skip
PLACES = ("Bergen", "Bristol", "Cork", "Dundee", "Ghent", "Graz", "Leeds", "Lyon", "Malmo", "Porto", "Turin", "Utrecht")
ABOUT = (
    "I ask too many questions.", "Here since the first day.", "Weekends only.", "I read more than I write.",
    "Three cats, one garden, no time.", "Retired, and busier than ever.", "Learning as I go.",
)  # fmt: skip
# subject -> (what they write, what they then ask)
LETTERS = {
    "Meeting in spring": ("We think of meeting in {place} on {day} April.", "Will you come?"),
    "Your old lamp": ("I would give {price} dollars for it.", "Is it still there?"),
    "A spare ticket": ("The seat is in row {row}, and it is yours if you like.", "Shall I keep it?"),
    "Thanks for the seeds": ("{row} of them are up already.", "What do they like best?"),
    "The book you lent me": ("I am on page {page}.", "May I keep it for another week?"),
    "Camera for sale": ("It costs {price} dollars with the bag.", "Do you want to see it first?"),
    "Help with the pump": ("I can be there at {row} o'clock on Sunday.", "Is that all right?"),
}
SAID = (
    "That is kind of you.", "I will think about it.", "Yes, with pleasure.", "Let me ask at home first.",
    "See you there.", "Not this time, sorry.",
)  # fmt: skip
