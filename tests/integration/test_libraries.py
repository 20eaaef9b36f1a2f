"""Libraries of npm that drag and load as real pages do. Without a registry a test skips by name: the same classes are
covered by small pages in test_drags.py and test_races.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import pytest_asyncio
from browser_pages import SIZE, Stage, act, browser, html
from hostile import Page, Site, reply

from flywheel.agent.actions import Click, Drag, Point, Scroll, Wait
from flywheel.envs.browser.pages import packages
from flywheel.envs.browser.pages.file_server import media_type
from flywheel.envs.browser.pages.manifest import PageManifest
from flywheel.utils.errors import EnvError

pytestmark = pytest.mark.asyncio(loop_scope="module")
_LIST = """<style>li {{ height: 40px; list-style: none; background: #aac; width: 150px; margin: 0 }}</style>
<ul id=list style='margin:0;padding:0'><li>a<li>b<li>c<li>d</ul><script src=sortablejs/Sortable.min.js></script>
<script>Sortable.create(list, {{animation: 0, {options}}})</script>"""
_BOARD = """<link rel=stylesheet href=chessground/assets/chessground.base.css><style>piece { background: #357 }
square.selected { background: red }</style><div id=board style='width:200px;height:200px'></div><script type=module>
const { Chessground } = await import('./chessground/dist/chessground.js');
const set = { animation: { enabled: false }, movable: { free: true } };
window.board = Chessground(document.querySelector('#board'), set);
</script>"""
_CUBE = """<canvas id=c width=200 height=200></canvas><script type=module>
const THREE = await import('./three/build/three.module.min.js');
const scene = new THREE.Scene(), camera = new THREE.PerspectiveCamera(60, 1, .1, 9); camera.position.z = 2;
const renderer = new THREE.WebGLRenderer({ canvas: c }); const cube = new THREE.Mesh(new THREE.BoxGeometry(),
    new THREE.MeshNormalMaterial()); scene.add(cube);
renderer.setAnimationLoop((time) => { cube.rotation.y = time / 500; renderer.render(scene, camera) });
</script>"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage():
    with Site({}) as site:
        async with browser() as chromium:
            yield Stage(chromium, site)


def use(stage: Stage, package: str, *folders: str) -> None:
    """Serve some files of an npm package on the stage's site; skips where it cannot be fetched."""
    manifest = PageManifest(
        name="libraries",
        title="-",
        package=(package,),
        instruction="-",
        reward="1",
        success=1,
        max_steps=1,
        path=Path("libraries.yaml"),
    )
    if not packages.has_page_files(manifest):
        try:
            packages.fetch_page_packages(manifest)
        except EnvError as error:
            pytest.skip(f"{package}: {error}")
    root = packages.find_served_folder(manifest)
    for folder in folders:
        for path in sorted(root.glob(folder)):
            stage.site.pages[path.relative_to(root).as_posix()] = _served(path)


def _served(path: Path) -> Page:
    headers = {"Content-Type": media_type(path)}
    return Page(send=lambda request: reply(request, 200, path.read_bytes(), headers))


@pytest.mark.parametrize("options", ["", "forceFallback: true"], ids=["native", "fallback"])
async def test_sortablejs_sorts(stage, options):
    use(stage, "npm:sortablejs@1.15.6", "sortablejs/Sortable.min.js")
    tab = await stage.open(_LIST.format(options=options))
    assert await act(tab, Drag(Point(0.3, 0.1), Point(0.3, 0.75)), 50) == ""
    assert await tab.evaluate("list.innerText.replace(/\\s/g, '')") == "bcda"


def square(name: str) -> Point:
    return Point(("abcdefgh".index(name[0]) + 0.5) / 8, (8 - int(name[1]) + 0.5) / 8)


async def test_chessground_takes_a_drag_after_a_move_by_clicks(stage):
    use(stage, "npm:chessground@9.1.1", "chessground/dist/*.js", "chessground/assets/chessground.base.css")
    tab = await stage.open(html(_BOARD))
    await act(tab, Click(square("g1")), 100)
    await act(tab, Click(square("f3")), 100)
    await act(tab, Drag(square("e2"), square("e4")), 100)
    pieces = "[...board.state.pieces].filter(([k]) => 'f3 e4 e2 g1'.includes(k)).map(([k, p]) => k + p.role).sort()"
    assert await tab.evaluate(pieces) == ["e4pawn", "f3knight"]


@pytest.mark.exhaustive
async def test_three_by_import_gives_one_first_screen_and_one_second(stage):
    use(stage, "npm:three@0.170.0", "three/build/three.module.min.js")
    screens = set()
    for _ in range(8):
        tab = await stage.open(html(_CUBE))
        first = await tab.screenshot()
        await act(tab, Wait(), 100)
        screens.add((first, await tab.screenshot()))
    assert len(screens) == 1
    assert len(set(next(iter(screens)))) == 2, "it turns"
    assert SIZE == 200


_SLIDES = """<link rel=stylesheet href=swiper/swiper-bundle.min.css><script src=swiper/swiper-bundle.min.js></script>
<div class=swiper style="width:500px;height:250px"><div class=swiper-wrapper>
<div class=swiper-slide style="background:#ccf">1</div><div class=swiper-slide style="background:#fcc">2</div>
<div class=swiper-slide style="background:#cfc">3</div></div><div class=swiper-pagination></div></div><script>
window.slides = new Swiper('.swiper', {mousewheel: true, pagination: {el: '.swiper-pagination'}})</script>"""


@pytest.mark.exhaustive
async def test_swiper_half_way_between_two_slides_is_the_same_each_time(stage):
    """A layer is drawn where it is in the first frame of its motion, which must not be a matter of real time."""
    use(stage, "npm:swiper@14.4.0", "swiper/swiper-bundle.min.*")
    episodes = set()
    for _ in range(8):
        tab = await stage.open(_SLIDES, viewport=(560, 300))
        screens = [await tab.screenshot()]
        for action in (Scroll(Point(0.4, 0.4), "down"), Wait(), Wait()) * 3:
            await act(tab, action, 200)
            screens.append(await tab.screenshot())
        episodes.add(tuple(screens))
        assert await tab.evaluate("slides.activeIndex") == 2
    assert len(episodes) == 1
