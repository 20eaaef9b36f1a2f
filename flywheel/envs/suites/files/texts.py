"""Hold the texts of the file manager: names of folders and files, notes, and questions about them."""

from __future__ import annotations

# folder -> (folders in it, names of files in it); every name occurs once
FOLDERS = {
    "Documents": (
        {
            "Letters": ("landlord.txt", "insurance.txt", "application.pdf", "greeting card.pdf"),
            "Taxes": ("income 2024.csv", "income 2025.csv", "receipts.zip", "declaration.pdf"),
            "Recipes": ("lentil soup.txt", "plum cake.txt", "bread.txt", "menu.pdf"),
        },
        ("passport scan.pdf", "phone numbers.txt", "rent.csv", "house rules.txt"),
    ),
    "Pictures": (
        {
            "Lake": ("sunrise.jpg", "rowing boat.jpg", "reeds.jpg", "swans.jpg", "pier.jpg"),
            "Mountains": ("summit.jpg", "hut.jpg", "glacier.jpg", "valley.jpg", "goats.jpg", "path.jpg"),
            "Family": ("birthday.jpg", "wedding.jpg", "grandparents.jpg", "garden party.mp4"),
        },
        ("avatar.jpg", "wallpaper.jpg", "screenshot.jpg"),
    ),
    "Music": (
        {
            "Piano": ("nocturne.mp3", "ragtime.mp3", "slow waltz.mp3"),
            "Choir": ("evening song.mp3", "rehearsal.mp3", "notes for altos.pdf"),
        },
        ("ringtone.mp3", "playlist.txt", "rain.mp3"),
    ),
    "Work": (
        {
            "Project Alder": ("budget.csv", "meeting notes.txt", "timetable.txt", "offer.pdf", "contract.pdf"),
            "Project Birch": ("kickoff.txt", "invoice.pdf", "logo.jpg", "measurements.csv"),
            "Training": ("fire drill.pdf", "first aid.mp4", "quiz.txt"),
        },
        ("holidays.csv", "door code.txt", "team photo.jpg"),
    ),
    "Travel": (
        {
            "Lisbon": ("tram map.pdf", "hotel.txt", "tiles.jpg", "harbor.jpg"),
            "Norway": ("ferry.txt", "packing list.txt", "fjord.jpg", "midnight.mp4"),
        },
        ("tickets.zip", "train.txt"),
    ),
    "Archive": ({}, ("old laptop.zip", "thesis.pdf", "diary 2019.txt", "backup.zip", "interview.mp3")),
}
TRASHED = ("draft.txt", "duplicate.jpg", "setup.zip", "shopping.txt", "blurred.jpg", "old invoice.pdf")
OTHERS = ("common budget.csv", "reading list.txt", "summer party.txt", "floor plan.pdf", "club photo.jpg")  # shared
KINDS = {  # ending -> (kind, title)
    "txt": ("text", "Text"),
    "jpg": ("image", "Picture"),
    "csv": ("table", "Table"),
    "mp3": ("sound", "Sound"),
    "mp4": ("film", "Film"),
    "pdf": ("pdf", "Document"),
    "zip": ("archive", "Archive"),
}
# file -> (its text with placeholders of drawn facts, a question, the name of the fact that answers it)
NOTES = {
    "landlord.txt": (
        "Dear Mrs {name},\nthe rent of {price} dollars was paid on day {day}.\nKind regards",
        "How many dollars was the rent?",
        "price",
    ),
    "insurance.txt": (
        "Contract {code}, in force until {year}.\nCall them about the cellar.",
        "Until which year is the insurance in force?",
        "year",
    ),
    "lentil soup.txt": (
        "Lentils {price} g, carrots, bay leaf.\nCook for {day} minutes.",
        "For how many minutes does the lentil soup cook?",
        "day",
    ),
    "plum cake.txt": (
        "Plums, flour, yeast, {price} g of butter.\nBake for {minutes} minutes.",
        "For how many minutes is the plum cake baked?",
        "minutes",
    ),
    "bread.txt": (
        "Flour 500 g, water {price} g, salt 10 g.\nLet it rest overnight.",
        "How many grams of water does the bread need?",
        "price",
    ),
    "phone numbers.txt": (
        "Doctor {phone}\nPlumber 555120400\nSchool 555120911",
        "What is the phone number of the doctor?",
        "phone",
    ),
    "house rules.txt": (
        "Quiet from {hour} in the evening.\nBins go out on Tuesday.",
        "From which hour is it quiet in the house?",
        "hour",
    ),
    "playlist.txt": (
        "1. Evening song\n2. Slow waltz\n3. Rain\nIn all {minutes} minutes",
        "How many minutes is the playlist long?",
        "minutes",
    ),
    "meeting notes.txt": (
        "Present: {name}, two guests.\nNext meeting in room {day}.",
        "In which room is the next meeting of the project Alder?",
        "day",
    ),
    "timetable.txt": (
        "Design until {month}.\nTests in autumn.\nDelivery in {year}.",
        "Until which month does the design of the project Alder last?",
        "month",
    ),
    "kickoff.txt": ("Goals: less paper, more trees.\nLead: {name}", "Who leads the project Birch?", "name"),
    "quiz.txt": (
        "1. Where is the exit?\n2. Whom do you call?\nTo pass: {hour} right answers",
        "How many right answers does one need to pass the quiz?",
        "hour",
    ),
    "door code.txt": ("Main door {code}\nDo not send this by mail.", "What is the code of the main door?", "code"),
    "hotel.txt": ("Hotel Miramar, room {price}.\nBreakfast until {hour}.", "Which room is it in the hotel?", "price"),
    "ferry.txt": (
        "Leaves from pier {hour}, take the green line.\nTicket {code}",
        "From which pier does the ferry leave?",
        "hour",
    ),
    "packing list.txt": (
        "Boots, rain coat, {day} pairs of socks, torch.",
        "How many pairs of socks are on the list?",
        "day",
    ),
    "train.txt": (
        "Coach {day}, seat {hour}, window.\nChange in {town}.",
        "In which town does one change trains?",
        "town",
    ),
    "diary 2019.txt": (
        "Moved to {town} in spring.\nLearned to swim.",
        "Which town did the diary's writer move to?",
        "town",
    ),
    "reading list.txt": ("Three novels, one book on birds.\nReturn them by {month}.", "", ""),
    "summer party.txt": ("We need {day} chairs and music.\nAsk the neighbors.", "", ""),
}
PEOPLE = (
    "Alma Reyes",
    "Boris Klein",
    "Chen Wu",
    "Dora Nilsen",
    "Emil Novak",
    "Farah Aziz",
    "Gina Rossi",
    "Hugo Martin",
)
TOWNS = ("Bergen", "Basel", "Cork", "Ghent", "Lyon", "Porto", "Turin", "Utrecht")
MONTHS = ("March", "April", "May", "June", "July", "August")
