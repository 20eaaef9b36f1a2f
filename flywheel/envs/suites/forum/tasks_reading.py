"""Define the forum's task templates that only look things up: pages, orders, search, questions."""

from __future__ import annotations

from flywheel.envs.suites.forum import draws, nav, threads
from flywheel.envs.suites.forum.data import Records
from flywheel.envs.suites.forum.pages import SORTS, shown_day
from flywheel.envs.suites.screen import Move, Screen
from flywheel.envs.suites.site_tasks import Draw, Params, Redraw, SiteTask

_WORDS = ("bread", "winter", "repair", "water", "children", "light", "glue", "library", "lamp", "neighbor", "beginner")


def _draw_sort(d: Draw) -> Params:
    sort = d.rng.choice([name for name in SORTS if name != "active"])
    return {**draws.draw_board(d), "sort": sort, "order": d.t(SORTS[sort])}


def _draw_tag(d: Draw) -> Params:
    _, one = d.pick("topics", lambda t: t["tags"])
    return {"tag": d.rng.choice(one["tags"])}


def _steps_tag(screen: Screen, p: Params) -> Move | None:
    return nav.open_forum_page(screen, "tags") or screen.click(
        f"tag {p['tag']}", "I click the tag.", "This is the tag."
    )


def _draw_refined(d: Draw) -> Params:
    board = draws.draw_board(d)
    return {**board, "word": d.rng.choice(_WORDS), "sort": d.rng.choice(("new", "replies", "score"))}


def _refined(d: Draw) -> Params:
    drawn = _draw_refined(d)
    return {**drawn, "order": d.t(SORTS[drawn["sort"]])}


def _steps_refined(screen: Screen, p: Params) -> Move | None:
    if screen.page != "search":
        return screen.fill({"search": p["word"]}, "", {"search": ("I search for it.",)})
    said = {name: ("I open the list and choose.", "I choose from the list.") for name in ("board", "sort")}
    return screen.fill({"words": p["word"], "board": p["board"], "sort": p["sort"]}, "find", said)


def _steps_my_tab(screen: Screen, p: Params) -> Move | None:
    return nav.open_forum_tab(screen, "mine", "tab", p["tab"])


# -- questions -------------------------------------------------------------------------------------------------------
def _replies(records: Records, p: Params) -> int:
    return threads.counts(records)[p["key"]]


def _steps_replies(screen: Screen, p: Params) -> Move | None:
    move = nav.open_topic(screen, p["key"]) or screen.seen("count")
    return move or screen.answer(str(_replies(screen.records, p)))


def _author(records: Records, p: Params) -> str:
    return records["_users"][records["topics"][p["key"]]["author"]]["name"]


def _steps_author(screen: Screen, p: Params) -> Move | None:
    return nav.open_topic(screen, p["key"]) or screen.answer(_author(screen.records, p))


def _draw_busiest(d: Draw) -> Params:
    drawn, number = draws.draw_board(d), threads.counts(d.records)
    return {**drawn, "key": draws.most(d.records, draws.topics_of(d.records, drawn["board"]), number.__getitem__)}


def _steps_busiest(screen: Screen, p: Params) -> Move | None:
    title = screen.records["topics"][p["key"]]["title"]
    move = nav.open_board(screen, p["board"], "replies") or screen.seen(f"topic {p['key']}")
    return move or screen.answer(title, "I compare them, this one has most.")


def _draw_voted(d: Draw) -> Params:
    drawn = draws.draw_board(d)
    keys = draws.topics_of(d.records, drawn["board"])
    return {**drawn, "key": draws.most(d.records, keys, lambda key: threads.score(d.records, key))}


def _steps_begun(screen: Screen, p: Params) -> Move | None:
    """Read in the board's list who began the topic of most votes."""
    move = nav.open_board(screen, p["board"], "score") or screen.seen(f"topic {p['key']}")
    return move or screen.answer(_author(screen.records, p), "It stands below the title.")


def _draw_best_reply(d: Draw) -> Params:
    """Draw a topic with two pages of replies, so that both have to be read."""
    number = threads.counts(d.records)
    long = [key for key, count in number.items() if 1 < count / threads.POSTS_A_PAGE <= 2]
    if not long:
        raise Redraw
    key = d.rng.choice(long)
    posts = [name for name, _ in threads.replies(d.records, key)]
    best = draws.most(d.records, posts, lambda name: threads.score(d.records, name))
    return {"key": key, "title": d.records["topics"][key]["title"], "post": best}


def _best_author(records: Records, p: Params) -> str:
    return records["_users"][records["posts"][p["post"]]["author"]]["name"]


def _steps_best_reply(screen: Screen, p: Params) -> Move | None:
    if (move := nav.open_topic(screen, p["key"])) is not None:
        return move
    number = int(screen.query.get("page", "1"))
    if number * threads.POSTS_A_PAGE < threads.counts(screen.records)[p["key"]]:
        return screen.click("next page", "I read the next page, too.", "I go on to the next page.")
    move = screen.seen("previous page")  # below the last reply
    return move or screen.answer(_best_author(screen.records, p), "I have read all the pages now.")


def _since(records: Records, p: Params) -> str:
    return shown_day(records["_users"][p["user"]]["since"])


def _steps_since(screen: Screen, p: Params) -> Move | None:
    if screen.page == "members" and screen.has(f"member {p['user']}"):
        return screen.answer(_since(screen.records, p))
    return nav.open_member(screen, p["user"])


def _written(records: Records, user: str) -> int:
    return sum(one["author"] == user for one in (*records["topics"].values(), *records["posts"].values()))


def _draw_writer(d: Draw) -> Params:
    return {"user": draws.most(d.records, list(d.records["_users"]), lambda key: _written(d.records, key))}


def _writer(records: Records, p: Params) -> str:
    return records["_users"][p["user"]]["name"]


def _steps_writer(screen: Screen, p: Params) -> Move | None:
    if (move := nav.open_forum_page(screen, "members")) is not None:
        return move
    if screen.query.get("sort") == "-posts":
        return screen.answer(_writer(screen.records, p), "The first one is the answer.")
    return screen.click("sort posts", "I sort the list.", "I click the head of the column.")


_ASKED = {
    "Meeting in spring": ("place", "In which town shall the meeting be?"),
    "Your old lamp": ("price", "How many dollars are offered for the lamp?"),
    "A spare ticket": ("row", "In which row is the seat of the spare ticket?"),
    "The book you lent me": ("page", "On which page is the reader of the book you lent?"),
    "Camera for sale": ("price", "How many dollars does the camera for sale cost?"),
}


def _draw_letter(d: Draw) -> Params:
    key, one = d.pick("talks", lambda talk: talk["subject"] in _ASKED)
    return {"key": key, "question": _ASKED[one["subject"]][1], "fact": _ASKED[one["subject"]][0]}


def _letter(records: Records, p: Params) -> str | int:
    return records["talks"][p["key"]]["_facts"][p["fact"]]


def _steps_letter(screen: Screen, p: Params) -> Move | None:
    return nav.open_talk(screen, p["key"]) or screen.answer(str(_letter(screen.records, p)))


TASKS = (
    SiteTask(
        "board",
        "Open the board {name}.",
        {1: 4},
        draws.draw_board,
        lambda s, p: nav.open_board(s, p["board"]),
        page=lambda p: (f"board/{p['board']}", {}),
    ),
    SiteTask(
        "search",
        "Search the forum for “{word}”.",
        {1: 5},
        lambda d: {"word": d.rng.choice(_WORDS)},
        lambda s, p: s.fill({"search": p["word"]}, ""),
        page=lambda p: ("search", {"q": p["word"]}),
    ),
    SiteTask(
        "topic",
        "Open the topic “{title}”.",
        {1: 6},
        draws.draw_topic,
        lambda s, p: nav.open_topic(s, p["key"]),
        page=lambda p: (f"topic/{p['key']}", {}),
    ),
    SiteTask(
        "tag",
        "Show all topics with the tag “{tag}”.",
        {1: 6},
        _draw_tag,
        _steps_tag,
        page=lambda p: (f"tag/{p['tag']}", {}),
    ),
    SiteTask(
        "member",
        "Open the page of the member {name}.",
        {2: 7},
        draws.draw_member,
        lambda s, p: nav.open_member(s, p["user"]),
        page=lambda p: (f"member/{p['user']}", {}),
    ),
    SiteTask(
        "my_tab",
        "Show the list of your own replies.",
        {1: 4},
        lambda d: {"tab": "replies"},
        _steps_my_tab,
        page=lambda p: ("mine", {"tab": "replies"}),
    ),
    SiteTask(
        "sort",
        "Show the topics of the board {name} in the order “{order}”.",
        {2: 6},
        _draw_sort,
        lambda s, p: nav.open_board(s, p["board"], p["sort"]),
        page=lambda p: (f"board/{p['board']}", {"sort": p["sort"]}),
    ),
    SiteTask(
        "refine",
        "Search the board {name} for “{word}”, in the order “{order}”.",
        {3: 12},
        _refined,
        _steps_refined,
        page=lambda p: ("search", {"q": p["word"], "board": p["board"], "sort": p["sort"]}),
    ),
    SiteTask(
        "replies",
        "How many replies has the topic “{title}”? Answer with the number.",
        {2: 7},
        draws.draw_topic,
        _steps_replies,
        answer=_replies,
    ),
    SiteTask(
        "author",
        "Who began the topic “{title}”? Answer with the name.",
        {2: 7},
        draws.draw_topic,
        _steps_author,
        answer=_author,
    ),
    SiteTask(
        "since",
        "Since when has {name} been a member? Answer with the day as it is shown.",
        {2: 7},
        draws.draw_member,
        _steps_since,
        answer=_since,
    ),
    SiteTask(
        "writer",
        "Which member has written most posts? Answer with the name.",
        {2: 6},
        _draw_writer,
        _steps_writer,
        answer=_writer,
    ),
    SiteTask(
        "busiest",
        "Which topic of the board {name} has most replies? Answer with its title.",
        {3: 6},
        _draw_busiest,
        _steps_busiest,
        answer=lambda records, p: records["topics"][p["key"]]["title"],
    ),
    SiteTask(
        "most_voted",
        "Who began the topic of the board {name} that has most votes? Answer with the name.",
        {4: 6},
        _draw_voted,
        _steps_begun,
        answer=_author,
    ),
    SiteTask(
        "best_reply",
        "Who wrote the reply with most votes in the topic “{title}”? Answer with the name.",
        {4: 24},
        _draw_best_reply,
        _steps_best_reply,
        answer=_best_author,
    ),
    SiteTask(
        "letter",
        "{question} Look in your messages. Answer with what they say.",
        {3: 7},
        _draw_letter,
        _steps_letter,
        answer=_letter,
    ),
)
