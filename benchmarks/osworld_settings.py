"""Settings of OSWorld's tasks' applications: a start, a solution, wrong ends (`osworld_cases.py`)."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Mapping
from typing import Any

from osworld_cases import Case, ExampleFile, write_bytes

_PROFILE = ".thunderbird/t5q2a5hp.default-release"
_BILL = "From - Mon Jan  1 00:00:00 2024\nFrom: a@example.org\nSubject: a bill\n\nText.\n\n"
_OFFICE = ".config/libreoffice/4/user/registrymodifications.xcu"


def setting_case(path: str, start: str | None, solved: str, *wrong: str) -> Callable[[ExampleFile], Case]:
    """Declare a task on one file of settings. path: from the home. start, solved, wrong: its texts; None: absent."""

    def build(example: ExampleFile) -> Case:
        texts = {"start": start, "solved": solved, "emptied": "", "missing": None}
        texts |= {f"wrong{number}": text for number, text in enumerate(wrong)}
        starts = {name: write_bytes(_content(name)) for name in example.downloads}
        return Case(starts, {}, {s: {path: None if t is None else write_bytes(t.encode())} for s, t in texts.items()})

    return build


def _content(name: str) -> bytes:
    """Return what stands for a file that a task downloads: a mail profile, or some bytes."""
    return mail_profile() if "thunderbird-profile" in name else f"stands for {name}".encode()


def mail_profile() -> bytes:
    """Return an archive with a profile of Thunderbird: local folders, and an account that is never asked."""
    prefs = {
        "mail.accountmanager.accounts": "account1,account2", "mail.accountmanager.defaultaccount": "account1",
        "mail.account.account1.server": "server1", "mail.account.account1.identities": "id1",
        "mail.account.account2.server": "server2", "mail.accountmanager.localfoldersserver": "server2",
        "mail.server.server1.type": "imap", "mail.server.server1.hostname": "outlook.office365.com",
        "mail.server.server1.userName": "anonym-x2024@outlook.com",
        "mail.server.server1.name": "anonym-x2024@outlook.com",
        "mail.server.server1.login_at_startup": False, "mail.server.server2.type": "none",
        "mail.server.server2.hostname": "Local Folders", "mail.server.server2.userName": "nobody",
        "mail.server.server2.name": "Local Folders", "mail.server.server2.directory-rel": "[ProfD]Mail/Local Folders",
        "mail.identity.id1.fullName": "Anonym Tester", "mail.identity.id1.useremail": "anonym-x2024@outlook.com",
        "mail.identity.id1.smtpServer": "smtp1", "mail.smtpservers": "smtp1",
        "mail.smtpserver.smtp1.hostname": "smtp.office365.com", "mailnews.start_page.enabled": False,
        "mail.rights.version": 1, "datareporting.policy.dataSubmissionPolicyBypassNotification": True,
        "app.donation.eoy.version.viewed": 999, "mail.shell.checkDefaultClient": False,
    }  # fmt: skip
    files = {
        ".thunderbird/profiles.ini": "[General]\nStartWithLastProfile=1\nVersion=2\n\n[Profile0]\n"
        "Name=default-release\nIsRelative=1\nPath=t5q2a5hp.default-release\nDefault=1\n",
        f"{_PROFILE}/prefs.js": write_prefs(prefs),
        f"{_PROFILE}/Mail/Local Folders/Bills": _BILL,
    }
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, text in files.items():
            one = tarfile.TarInfo(name)
            one.size = len(text.encode())
            archive.addfile(one, io.BytesIO(text.encode()))
    return content.getvalue()


def write_prefs(prefs: Mapping[str, Any]) -> str:
    """Return Mozilla's `prefs.js` with these settings."""
    return "".join(f'user_pref("{name}", {json.dumps(value)});\n' for name, value in prefs.items())


def mail(*changes: tuple[str, Any], wrong: tuple[str, Any] = ("mail.other", 1)) -> Callable[[ExampleFile], Case]:
    start = {"mail.identity.id1.fullName": "Anonym Tester"}
    return setting_case(
        f"{_PROFILE}/prefs.js",
        write_prefs(start),
        write_prefs({**start, **dict(changes)}),
        write_prefs({**start, **dict([wrong])}),
    )


def filters(action: str, value: str, condition: str) -> Callable[[ExampleFile], Case]:
    def text(said: str) -> str:
        lines = {"version": "9", "logging": "no", "name": "mine", "enabled": "yes", "type": "17"}
        lines |= {"action": action, "actionValue": said, "condition": condition}
        return "".join(f'{name}="{one}"\n' for name, one in lines.items())

    return setting_case(
        f"{_PROFILE}/ImapMail/outlook.office365.com/msgFilterRules.dat", None, text(value), text("else")
    )


def vlc(start: str, solved: str, wrong: str) -> Callable[[ExampleFile], Case]:
    return setting_case(".config/vlc/vlcrc", f"[core]\n{start}\n", f"[core]\n{solved}\n", f"[core]\n{wrong}\n")


def gimp(name: str, start: str | None, solved: str, wrong: str) -> Callable[[ExampleFile], Case]:
    return setting_case(f".config/GIMP/2.10/{name}", start, solved, wrong)


def chrome(
    solved: dict[str, Any], wrong: dict[str, Any], name: str = "Default/Preferences"
) -> Callable[[ExampleFile], Case]:
    path = f".config/google-chrome/{name}"
    return setting_case(path, json.dumps({"profile": {"name": "Person 1"}}), json.dumps(solved), json.dumps(wrong))


def office(path: str, name: str, value: str, wrong: str) -> Callable[[ExampleFile], Case]:
    head = '<?xml version="1.0" encoding="UTF-8"?>\n<oor:items xmlns:oor="http://openoffice.org/2001/registry">'

    def text(said: str) -> str:
        prop = f'<prop oor:name="{name}" oor:op="fuse"><value>{said}</value></prop>'
        return f'{head}<item oor:path="{path}">{prop}</item></oor:items>'

    return setting_case(_OFFICE, f"{head}</oor:items>", text(value), text(wrong))


def kept_bookmarks(names: list[str]) -> dict[str, Any]:
    bar = [{"name": name, "type": "folder", "children": []} for name in names]
    return {"roots": {"bookmark_bar": {"children": bar, "name": "Bookmarks bar", "type": "folder"}}}


_ENGINE = "default_search_provider_data"
_FLAGS = ["chrome-refresh-2023", "chrome-webui-refresh-2023"]
_DARK = "153;210;153;20;210;20;255;199;15;245;39;29"
CASES: dict[str, Callable[[ExampleFile], Case]] = {
    "vlc/8ba5ae7a": vlc("a=1", "input-record-path=/home/user/Desktop", "input-record-path=/home/user"),
    "vlc/386dbd0e": vlc("key-play-pause=Space", "global-key-play-pause=Ctrl+p", "global-key-play-pause="),
    "vlc/9195653c": vlc("a=1", "qt-max-volume=200", "qt-max-volume=150"),
    "vlc/d06f0d4d": vlc("a=1", "qt-slider-colours=20;20;20;9;9;9;30;30;30;40;40;40", f"qt-slider-colours={_DARK}"),
    "vlc/a5bbbcd5": vlc("a=1", "qt-minimal-view=1", "qt-minimal-view=0"),
    "vlc/f3977615": vlc("a=1", "one-instance-when-started-from-file=0", "one-instance-when-started-from-file=1"),
    "vlc/215dfd39": vlc("a=1", "qt-bgcone=0", "qt-bgcone=1"),
    "gimp/d52d6308": gimp("sessionrc", "(hide-docks no)\n", "(hide-docks yes)\n", "(hide-dock yes)\n"),
    "gimp/b148e375": gimp(
        "gimprc", "(tile-cache-size 1)\n", '(layer-new-name "Square")\n', '(layer-new-name "Round")\n'
    ),
    "gimp/a746add2": gimp(
        "action-history",
        '(history-item "file-open" 1)\n',
        '(history-item "filters-vignette" 1)\n',
        '(history-item "filters-vignette" 0)\n',
    ),
    "gimp/7b7617bd": gimp("gimprc", "(undo-levels 5)\n", "(undo-levels 100)\n", "(undo-levels 1000)\n"),
    "gimp/7767eef2": gimp("gimprc", '(theme "Dark")\n', '(theme "Light")\n', '(theme "light")\n'),
    "thunderbird/6766f2b8": mail(
        ("mail.identity.id1.htmlSigText", "Anonym\nXYZ Lab"), wrong=("mail.identity.id1.htmlSigText", "Anonym")
    ),
    "thunderbird/030eeff7": mail(("mail.identity.id1.auto_quote", False), wrong=("mail.identity.id1.auto_quote", True)),
    "thunderbird/94760984": mail(
        ("extensions.activeThemeID", "thunderbird-compact-dark@mozilla.org"),
        wrong=("extensions.activeThemeID", "light"),
    ),
    "thunderbird/c9e7eaf2": mail(
        ("mail.server.default.applyIncomingFilters", True),
        ("mail.imap.use_status_for_biff", False),
        wrong=("mail.server.default.applyIncomingFilters", True),
    ),
    "thunderbird/e1e75309": filters(
        "Move to folder", "mailbox://nobody@Local%20Folders/Promotions", "AND (subject,contains,discount)"
    ),
    "thunderbird/35253b65": filters("Forward", "anonym-x2024@gmail.com", "ALL"),
    "thunderbird/480bcfea": setting_case(
        f"{_PROFILE}/xulstore.json",
        "{}",
        json.dumps({"chrome://messenger/content/messenger.xhtml": {"folderTree": {"mode": "all,smart"}}}),
        json.dumps({"chrome://messenger/content/messenger.xhtml": {"folderTree": {"mode": "all"}}}),
    ),
    "chrome/bb5e4c0d": chrome(
        {_ENGINE: {"template_url_data": {"short_name": "Bing"}}}, {_ENGINE: {"template_url_data": {}}}
    ),
    "chrome/2ad9387a": chrome(kept_bookmarks(["Favorites"]), kept_bookmarks(["Else"]), "Default/Bookmarks"),
    "chrome/2ae9ba84": chrome({"profile": {"name": "Thomas"}}, {"profile": {"name": "thomas"}}),
    "chrome/480bcfea": chrome(
        {"browser": {"enabled_labs_experiments": _FLAGS}}, {"browser": {"enabled_labs_experiments": []}}, "Local State"
    ),
    "chrome/af630914": chrome(
        {"webkit": {"webprefs": {"default_font_size": 24}}}, {"webkit": {"webprefs": {"default_font_size": 12}}}
    ),
    "chrome/99146c54": chrome(
        {"profile": {"default_content_setting_values": {"cookies": 4}}}, {"profile": {"name": "Person 1"}}
    ),
    "chrome/030eeff7": chrome({"enable_do_not_track": True}, {"enable_do_not_track": False}),
    "chrome/9656a811": chrome({"safebrowsing": {"enhanced": True}}, {"safebrowsing": {"enhanced": False}}),
    "libreoffice_impress/2cd43775": office(
        "/org.openoffice.Office.Common/Save/Document", "AutoSaveTimeIntervall", "3", "10"
    ),
    "libreoffice_impress/0f84bef9": office(
        "/org.openoffice.Office.Impress/Misc/Start", "EnablePresenterScreen", "false", "true"
    ),
    "libreoffice_writer/f178a4a9": office(
        "/org.openoffice.Office.Writer/DefaultFont", "Standard", "Times New Roman", "Arial"
    ),
}
