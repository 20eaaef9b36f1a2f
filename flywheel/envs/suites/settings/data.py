"""Generate the data of the settings, a device, anew for each session, in English or Chinese."""

from __future__ import annotations

import random
from typing import Any

# section -> (title, icon of look.json, accent of its tile)
SECTIONS = {
    "network": ("Network", "wifi", "blue"),
    "bluetooth": ("Bluetooth", "bolt", "purple"),
    "display": ("Display", "moon", "orange"),
    "sound": ("Sound", "sound", "pink"),
    "apps": ("Apps", "square", "green"),
    "privacy": ("Privacy", "key", "red"),
    "users": ("Users", "heart", "gray"),
    "account": ("Account", "star", "yellow"),
    "language": ("Language", "book", "blue"),
    "about": ("About", "bell", "black"),
}
# switch -> (section, title, what it does)
SWITCHES = {
    "wifi": ("network", "Wi-Fi", "Connect to networks nearby"),
    "airplane": ("network", "Airplane mode", "All radios off"),
    "hotspot": ("network", "Hotspot", "Share your connection"),
    "metered": ("network", "Save data", "Load less on mobile networks"),
    "bluetooth": ("bluetooth", "Bluetooth", "Connect to devices nearby"),
    "visible": ("bluetooth", "Visible to others", "Other devices can find this one"),
    "auto_brightness": ("display", "Automatic brightness", "Follow the light in the room"),
    "rotate": ("display", "Rotate the screen", "Turn with the device"),
    "night": ("display", "Night light", "Warmer colors in the evening"),
    "vibrate": ("sound", "Vibrate for calls", "Also while it rings"),
    "quiet": ("sound", "Do not disturb", "No sounds at all"),
    "keys": ("sound", "Key sounds", "A click with every key"),
    "location": ("privacy", "Location", "Apps may ask where you are"),
    "usage": ("privacy", "Usage reports", "Send reports to the maker"),
    "ads": ("privacy", "Personal ads", "Ads by your interests"),
    "lock": ("privacy", "Lock the screen", "After five minutes"),
    "spelling": ("language", "Check spelling", "Mark wrong words"),
    "updates": ("about", "Automatic updates", "Install them at night"),
    "backup": ("about", "Backup", "Keep a copy every day"),
}
# choice -> (section, title, options)
CHOICES = {
    "theme": ("display", "Theme", ("Light", "Dark", "Automatic")),
    "text": ("display", "Text size", ("Small", "Normal", "Large", "Huge")),
    "timeout": ("display", "Screen off after", ("15 seconds", "1 minute", "5 minutes", "Never")),
    "ringtone": ("sound", "Ringtone", ("Bell", "River", "Piano", "Drum", "Bird", "Rain")),
    "alarm": ("sound", "Alarm sound", ("Morning", "Siren", "Guitar", "Horn")),
    "tongue": ("language", "Language", ("English", "Chinese", "German", "Spanish", "French", "Hindi")),
    "zone": ("language", "Time zone", ("London", "Berlin", "New York", "Tokyo", "Beijing", "Sydney")),
    "format": ("language", "Date format", ("31/12/2026", "12/31/2026", "2026-12-31")),
    "week": ("language", "First day of the week", ("Monday", "Sunday", "Saturday")),
}
LEVELS = {"brightness": ("display", "Brightness"), "volume": ("sound", "Volume"), "ring": ("sound", "Ring volume")}
PERMISSIONS = {"notify": "Notifications", "camera": "Camera", "place": "Location", "microphone": "Microphone"}
ROLES = ("Owner", "Editor", "Guest")

_APPS = (
    "Album",
    "Atlas",
    "Calculator",
    "Camera Roll",
    "Chess",
    "Daily News",
    "Dictionary",
    "Draw",
    "Fitness",
    "Garden",
    "Kitchen",
    "Language School",
    "Letters",
    "Library",
    "Money",
    "Movies",
    "Museum",
    "Music Box",
    "Notes",
    "Parking",
    "Piano",
    "Podcasts",
    "Puzzle",
    "Radio",
    "Recorder",
    "Reminders",
    "Running",
    "Sky Map",
    "Trains",
    "Weather",
)
_APPS_ZH = (
    "相册",
    "地图册",
    "计算器",
    "照片卷",
    "象棋",
    "每日新闻",
    "词典",
    "画板",
    "健身",
    "花园",
    "厨房",
    "语言学校",
    "书信",
    "图书馆",
    "钱包",
    "电影",
    "博物馆",
    "音乐盒",
    "便签",
    "停车",
    "钢琴",
    "播客",
    "拼图",
    "收音机",
    "录音机",
    "提醒",
    "跑步",
    "星空图",
    "火车",
    "天气",
)
_NETWORKS = (
    "Blue Door",
    "Cafe Luna",
    "Corner House",
    "Green Office",
    "Guest 24",
    "Harbor",
    "Maple Street",
    "Office 3",
    "Orchard",
    "River View",
    "Station",
    "Studio",
    "Sunny Flat",
    "Upstairs",
    "Workshop",
)
_NETWORKS_ZH = (
    "蓝门",
    "月亮咖啡",
    "街角小屋",
    "绿色办公室",
    "访客24",
    "港湾",
    "枫树街",
    "三号办公室",
    "果园",
    "河景",
    "车站",
    "工作室",
    "阳光公寓",
    "楼上",
    "车间",
)
_DEVICES = ("Headphones", "Keyboard", "Mouse", "Speaker", "Watch", "Printer", "Car", "Television", "Scale", "Lamp")
_DEVICES_ZH = ("耳机", "键盘", "鼠标", "音箱", "手表", "打印机", "汽车", "电视", "体重秤", "台灯")
_PEOPLE = (
    "Anna Hill",
    "Ben Wood",
    "Clara Stone",
    "David Lake",
    "Emma Field",
    "Frank Marsh",
    "Grace Ford",
    "Henry Park",
    "Iris West",
    "Jack Moore",
    "Kate Brook",
    "Leo Reed",
    "Mary Cole",
    "Nora Lane",
    "Oscar Grant",
    "Paul Rivers",
)
_PEOPLE_ZH = (
    "王芳",
    "李伟",
    "张敏",
    "刘洋",
    "陈静",
    "杨帆",
    "赵磊",
    "黄丽",
    "周杰",
    "吴倩",
    "徐强",
    "孙琳",
    "马超",
    "朱婷",
    "胡军",
    "林悦",
)
_WORDS = (
    "amber",
    "birch",
    "cedar",
    "copper",
    "falcon",
    "harbor",
    "lemon",
    "marble",
    "meadow",
    "olive",
    "pepper",
    "river",
    "silver",
    "sunset",
    "violet",
    "willow",
)


def make_records(rng: random.Random, language: str) -> dict[str, Any]:
    """Draw the records of a device: `values` of its settings, networks, devices, apps, users, account."""
    chinese = language == "zh"
    values: dict[str, Any] = {name: rng.random() < 0.5 for name in SWITCHES} | {"wifi": True, "bluetooth": True}
    values |= {name: rng.choice(options) for name, (_, _, options) in CHOICES.items()}
    values |= {name: 10 * rng.randint(1, 9) for name in LEVELS}
    values |= {
        "night_from": f"{rng.randint(19, 23)}:{rng.choice(('00', '30'))}",
        "night_to": f"0{rng.randint(5, 8)}:00",
    }
    values["device"] = f"{rng.choice(_WORDS)}-{rng.randint(10, 99)}"
    networks = rng.sample(_NETWORKS_ZH if chinese else _NETWORKS, 7)
    known = rng.sample(range(7), 3)
    devices = rng.sample(_DEVICES_ZH if chinese else _DEVICES, 6)
    apps = sorted(rng.sample(_APPS_ZH if chinese else _APPS, 24))
    sizes = rng.sample(range(12, 900), len(apps))
    people = rng.sample(_PEOPLE_ZH if chinese else _PEOPLE, 5)
    return {
        "values": values,
        "networks": {
            f"n{n}": {
                "name": name,
                "saved": n in known,
                "connected": n == known[0],
                "secure": n not in known[1:2],
                "_address": f"192.168.{rng.randint(0, 9)}.{rng.randint(2, 250)}",
                "_signal": rng.randint(1, 4),
            }
            for n, name in enumerate(networks)
        },
        "devices": {f"d{n}": {"name": name, "paired": n < 2} for n, name in enumerate(devices)},
        "apps": {
            f"a{n}": {
                "name": name,
                "size": sizes[n],
                "cache": rng.randint(1, 200),
                **{permission: rng.random() < 0.6 for permission in PERMISSIONS},
            }
            for n, name in enumerate(apps)
        },
        "users": {
            f"u{n}": {"name": name, "role": "Owner" if n == 0 else rng.choice(ROLES[1:])}
            for n, name in enumerate(people[:4])
        },
        "account": {
            "name": people[0],
            "email": f"{rng.choice(_WORDS)}{rng.randint(1, 99)}@example.com",
            "phone": "555" + "".join(rng.choice("0123456789") for _ in range(6)),
            "password": word(rng),
        },
    }


def word(rng: random.Random) -> str:
    """Draw a word with a number, for a password or a name."""
    return f"{rng.choice(_WORDS)}{rng.randint(100, 999)}"


def person(rng: random.Random, language: str, taken: set[str]) -> str:
    return rng.choice([name for name in (_PEOPLE_ZH if language == "zh" else _PEOPLE) if name not in taken])
