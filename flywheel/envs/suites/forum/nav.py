"""Navigate as the expert of the forum: each function returns the next move, or None at the end."""

from __future__ import annotations

from flywheel.envs.suites.forum import threads
from flywheel.envs.suites.forum.pages import SORTS
from flywheel.envs.suites.screen import Move, Screen

_ORDER = tuple(SORTS)


def open_forum_page(screen: Screen, page: str) -> Move | None:
    """Go to a page of the menu."""
    if screen.page == page:
        return None
    return screen.click(f"menu {page or 'start'}", "I open this page.", "I look in the menu.", "I click the menu.")


def open_top_bar_page(screen: Screen, page: str) -> Move | None:
    """Go to a page of the bar at the top: alerts, messages, profile."""
    return None if screen.page == page else screen.click(page, "I click at the top.", "It is at the top.")


def open_forum_tab(screen: Screen, page: str, name: str, value: str) -> Move | None:
    """Go to a tab of a page of the menu, which sets `name` of the query to `value`."""
    if screen.page == page and screen.query.get(name) == value:
        return None
    return open_forum_page(screen, page) or screen.click(f"tab {page}?{name}={value}", "I open the other tab.")


def open_board(screen: Screen, key: str, sort: str = "") -> Move | None:
    """Go to a board, and sort it."""
    if screen.page != f"board/{key}":
        return open_forum_page(screen, "") or screen.click(f"board {key}", "I open the board.", "This is the board.")
    if not sort or screen.query.get("sort", _ORDER[0]) == sort:
        return None
    return screen.click(f"sort {sort}", "I change the order.", "In another order.")


def open_topic(screen: Screen, key: str) -> Move | None:
    """Go to the page of a topic: click it where it is shown, else search for its title."""
    if screen.page == f"topic/{key}":
        return None
    if screen.has(f"topic {key}"):
        return screen.click(f"topic {key}", "Here is the topic.", "I open the topic.", "This is the one.")
    title = screen.records["topics"][key]["title"]
    return screen.fill({"search": title}, "", {"search": ("I type the title.", "I search for the topic.")})


def open_post(screen: Screen, key: str) -> Move | None:
    """Go to the page of its topic that a post is on."""
    if (move := open_topic(screen, threads.topic_of(screen.records, key))) is not None:
        return move
    number = threads.page_of(screen.records, key)
    if int(screen.query.get("page", "1")) == number:
        return None
    name = f"page {number}" if screen.has(f"page {number}") else "next page"
    return screen.click(name, "It is on another page.", "I go to the next page.")


def click_post_action(screen: Screen, post_key: str, element: str, *said: str) -> Move:
    """Click an element of a post, or first open the menu that it is in."""
    if screen.has(f"{element} {post_key}"):
        return screen.click(f"{element} {post_key}", *said)
    return screen.click(f"more {post_key}", "I look for more.", "I open the menu.")


def click_moderator_action(screen: Screen, key: str, element: str, *said: str) -> Move:
    """Go to a topic and click an element of the moderators' menu, or first open that."""
    if (move := open_topic(screen, key)) is not None:
        return move
    return screen.click(element if screen.has(element) else "moderate", *said)


def open_member(screen: Screen, key: str) -> Move | None:
    """Go to the page of a member, through the list."""
    if screen.page == f"member/{key}":
        return None
    if screen.has(f"member {key}"):
        return screen.click(f"member {key}", "I open this page.", "Here it is.")
    name = screen.records["_users"][key]["name"]
    return open_forum_page(screen, "members") or screen.fill({"find": name}, "", {"find": ("I type the name.",)})


def open_talk(screen: Screen, key: str) -> Move | None:
    """Go to an exchange of messages."""
    if screen.page == f"messages/{key}":
        return None
    return open_top_bar_page(screen, "messages") or screen.click(f"talk {key}", "I open this message.", "I read it.")
