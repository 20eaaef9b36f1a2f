"""Print a desktop's accessibility tree as JSON; it runs in an isolated computer, by the system's own Python."""

import json
import signal

_MOST_NODES, _MOST_DEPTH, _MOST_SECONDS, _MOST_TEXT = 4096, 16, 8, 2000


def print_tree() -> None:
    """Print the tree as a JSON list of nodes, which `desktop_explorer.parse_tree` reads.

    Each is [depth, role, name, box in pixels, shows, checked, editable, sensitive, text, selected text].
    """
    import gi

    gi.require_version("Atspi", "2.0")
    from gi.repository import Atspi

    Atspi.init()
    found: list[list] = []

    def walk(node, depth: int) -> None:
        if node is None or len(found) >= _MOST_NODES or depth > _MOST_DEPTH:
            return
        role, states, box, text, selected = node.get_role_name(), node.get_state_set(), [0, 0, 0, 0], "", ""
        try:
            place = node.get_extents(Atspi.CoordType.SCREEN)
            box = [place.x, place.y, place.width, place.height]
            if role in ("text", "entry", "label", "spin button", "editbar", "status bar"):
                text = Atspi.Text.get_text(node, 0, min(Atspi.Text.get_character_count(node), _MOST_TEXT))
                if Atspi.Text.get_n_selections(node):
                    part = Atspi.Text.get_selection(node, 0)
                    selected = text[part.start_offset : part.end_offset]
        except Exception:  # it has gone meanwhile, or has no place: then it does not show
            pass
        has = lambda kind: bool(states.contains(kind))  # noqa: E731
        kind = Atspi.StateType
        shows = has(kind.SHOWING) and box[2] > 1
        told = [has(kind.CHECKED), has(kind.EDITABLE), has(kind.SENSITIVE)]
        found.append([depth, role, (node.get_name() or "").strip(), box, shows, *told, text, selected])
        for number in range(node.get_child_count()):
            walk(node.get_child_at_index(number), depth + 1)

    signal.alarm(_MOST_SECONDS)
    desktop = Atspi.get_desktop(0)
    for number in range(desktop.get_child_count()):
        try:
            walk(desktop.get_child_at_index(number), 0)
        except Exception:  # a program that ended meanwhile; the others are told
            continue
    print("tree:" + json.dumps(found))


if __name__ == "__main__":
    print_tree()
