"""Other models' words for the actions and their parameters: one table of each, for all text forms.

Their sources stand beside the corpus that they are measured on, `benchmarks/foreign_forms.json`.
"""

from __future__ import annotations

from flywheel.agent.vocabulary import KNOWN

# The tools of computer-use models, whose parameter `action` names the action.
TOOLS = frozenset({"computer_use", "mobile_use", "browser_use", "computer", "do"})
# Modules whose functions models call in code.
LIBRARIES = frozenset({"pyautogui", "computer", "mobile", "browser", "time"})
CODE = "pyautogui"  # whose functions take more by position, and whose `press` lets the key go again

SAME = {
    "click": "left_click left_single tap single_tap single_click click_element click_at mouse_click",
    "left_double": "double_click double_tap doubleclick left_double_click",
    "right_single": "right_click right_click_at",
    "long_press": "longpress long_tap long_click press_and_hold",
    "drag": "left_click_drag drag_to drag_and_drop select select_text slide",
    "hotkey": "key keypress key_press press_key key_combination hot_key shortcut",
    "press": "key_down keydown",
    "release": "key_up keyup",
    "type": "write typewrite input input_text type_text type_name write_element_abs type_text_at",
    "scroll": "scroll_at scroll_document vscroll",
    "wait": "sleep pause wait_5_seconds screenshot take_screenshot",  # each lets the screen be seen again
    "finished": "finish done answer complete end terminate_success",
    "call_user": "interact ask_user take_over info abort fail infeasible impossible",
    "navigate": "goto visit_url open_url go_to_url",
    "navigate_back": "back go_back history_back",
    "open_app": "open launch awake launch_app",
    "press_home": "home navigate_home go_home",
    "hover": "mouse_move move move_to moveto hover_at mouse_hover",
}
NAMES = {name: name for name in KNOWN} | {word: name for name, words in SAME.items() for word in words.split()}
# Names of presses of one key.
KEYS = {"enter": "enter", "press_enter": "enter", "esc": "escape", "escape": "escape", "copy": "ctrl c"}
# Understood, and nothing of the action set equals it.
ABSENT = frozenset(
    [
        "middle_click",
        "triple_click",
        "zoom",
        "hold_key",
        "left_mouse_down",
        "left_mouse_up",
        "mouse_down",
        "mouse_up",
        "cursor_position",
        "move_rel",
        "drag_rel",
        "refresh",
        "restart",
        "go_forward",
        "web_search",
        "search",
        "open_web_browser",
        "pause_and_memorize_fact",
        "note",
        "note_to_user",
        "call_api",
        "quote_text",
        "quote_clipboard",
        "llm",
        "scroll_to",
        "menu",
        "recent",
        "press_recent",
        "press_menu",
        "click_middle",
        "triple_tap",
        "double_press",
        "set_value",
        "close",
    ]
)
BACK_ON_PHONES = frozenset({"do", "mobile_use", "mobile"})  # whose `back` is the phone's button

MEANS = {
    "point": "point start_box box bbox coordinate coordinates position element location xy",
    "start_point": "start_point start_coordinate start_position start from_coord from point1 start_coordinates",
    "end_point": "end_point end_box end_coordinate coordinate2 end_position end to_coord to point2 end_coordinates",
    "x": "x",
    "y": "y",
    "x1": "x1 start_x from_x",
    "y1": "y1 start_y from_y",
    "x2": "x2 end_x to_x destination_x",
    "y2": "y2 end_y to_y destination_y",
    "key": "key keys hotkey combination key_combination",
    "content": "content text url message input_text value return answer result query fact question",
    "direction": "direction scroll_direction",
    "app_name": "app_name app application",
    "command": "command",
    "code": "code",
    "path": "path",
    "tool": "tool",
    "arguments": "arguments",
    "status": "status",
    "button": "button click_type mouse_button",
    "clicks": "clicks num_clicks click_count presses",
    "amount": "pixels scroll_amount amount magnitude step_count",
    "scroll_x": "scroll_x",
    "scroll_y": "scroll_y",
    "submit": "press_enter enter submit",
    "clear": "delete_existing_text clear clear_text clear_before_typing",
    "held": "modifiers modifier hold_keys",
    "actions": "actions",
    # Let pass: how long, how smoothly, and what the model says about it.
    "": "time duration seconds interval tween delay action name type id call_id index pending_safety_checks "
    "element_info element_type element_description description explain explanation summary reason reasoning "
    "thought thoughts note memory observation label element_id target_element logscreenshot",
}
PARAMETERS = {word: name for name, words in MEANS.items() for word in words.split()}
# What an action takes beyond its point; what is given and not taken would change what is done.
POINTED = frozenset({"point", "start_point", "button", "clicks"})
TAKES: dict[str, frozenset[str]] = {
    "click": POINTED,
    "left_double": POINTED,
    "right_single": POINTED,
    "long_press": POINTED,
    "hover": POINTED,
    "drag": frozenset({"point", "start_point", "end_point", "button"}),
    "scroll": frozenset({"point", "start_point", "end_point", "direction", "amount"}),
    "hotkey": frozenset({"key"}),
    "press": frozenset({"key"}),
    "release": frozenset({"key"}),
    "type": frozenset({"content"}),
}
LEFT, RIGHT = ("left", "primary"), ("right", "secondary")
BUTTON_NAMES = {"home": "press_home", "back": "press_back", "enter": "hotkey"}
DONE = frozenset({"", "success", "succeed", "succeeded", "complete", "completed", "done"})
FAILED = frozenset({"failure", "fail", "failed", "infeasible", "impossible"})
