"""The page in a browser: it loads, draws, sorts, and its tile explorer counts what `trigemm.tiling` predicts."""

import random
import shutil
import time

import pytest

from trigemm.tiling import predicted_traffic

CHROMIUM, DRIVER = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
SWITCHES = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-prefers-reduced-motion",  # a smooth scroll would still run when a click comes
]
SIZES = ("m", "n", "k", "bm", "bn", "bk")

pytestmark = [
    pytest.mark.xdist_group("page"),
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver"),
]


@pytest.fixture(scope="module")
def opened(html, tmp_path_factory):
    """A browser with the page in it."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    folder = tmp_path_factory.mktemp("page")
    (folder / "report.html").write_text(html, encoding="utf-8")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for switch in (*SWITCHES, f"--user-data-dir={folder / 'profile'}", "--window-size=1200,900"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options=options, service=Service(DRIVER)) as driver:
        driver.get((folder / "report.html").as_uri())
        yield driver


@pytest.fixture
def page(opened):
    """The page, with no message in its console before or after the test."""
    yield opened
    assert opened.get_log("browser") == []


def wait(page, script, seconds=10):
    end = time.monotonic() + seconds
    while not page.execute_script(f"return {script}"):
        assert time.monotonic() < end, script
        time.sleep(0.05)


def find(page, selector):
    return page.find_element("css selector", selector)


def number(page, name):
    return int(
        page.execute_script("return document.querySelector(`[data-out=${arguments[0]}]`).textContent", name).replace(",", "")
    )


def choose(page, sizes, diagonal=None):
    """Type sizes and blocks into the explorer's fields."""
    script = """
        const put = (name, value) => {
            const field = document.querySelector(`#explorer [name=${name}]`);
            if (field.type === "checkbox") field.checked = value; else field.value = value;
            field.dispatchEvent(new Event("change"));
        };
        for (const [name, value] of arguments[0]) put(name, value);
    """
    page.execute_script(script, [("triangle", False), *zip(SIZES, sizes, strict=True)])
    page.execute_script(script, [("diagonal", diagonal or 0), ("triangle", diagonal is not None)])


def sizes_of(page):
    return [int(find(page, f"#explorer [name={name}]").get_attribute("value")) for name in SIZES]


def assert_closed_form(page, diagonal=None):
    expected = predicted_traffic(*sizes_of(page), diagonal=diagonal)
    assert number(page, "loads-a") == expected.a.elements
    assert number(page, "loads-b") == expected.b.elements
    assert number(page, "loads") == expected.loads
    assert number(page, "stores") == expected.stores
    assert number(page, "masked") == expected.masked
    assert number(page, "tiles") == expected.tiles
    assert number(page, "bytes") == expected.loaded_bytes + expected.stored_bytes
    assert number(page, "waves") == -(-expected.tiles // 132)


def test_every_chart_is_drawn_once_it_is_unfolded_and_nothing_is_fetched(page):
    wait(page, "document.querySelectorAll('[data-chart]:not([data-drawn], details *)').length === 0")
    assert page.execute_script("return document.querySelectorAll('[data-drawn] svg').length") > 5
    assert page.execute_script("return document.querySelectorAll('details [data-drawn]').length") == 0
    for open_ in ("true", "false", "true"):
        page.execute_script(f"document.querySelectorAll('details').forEach((details) => (details.open = {open_}))")
        wait(page, "document.querySelectorAll('[data-chart]:not([data-drawn])').length === 0", seconds=30)
    narrowest = "Math.min(...[...document.querySelectorAll('[data-chart] svg')].map((svg) => svg.getBoundingClientRect().width))"
    wait(page, f"{narrowest} > 300")
    assert page.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)") == []


def test_charts_keep_their_words_when_they_are_drawn(page):
    page.execute_script("document.querySelectorAll('details').forEach((details) => (details.open = true))")
    wait(page, "document.querySelectorAll('[data-chart]:not([data-drawn])').length === 0", seconds=30)
    charts = page.execute_script("""
        return [...document.querySelectorAll("[data-chart]")]
            .map((chart) => [chart.closest("figure").querySelector("h3").textContent, chart.role, chart.ariaLabel])""")
    for title, role, label in charts:
        assert role == "img"
        assert label.startswith(f"{title}. ")
        assert len(label) > len(title) + 20


def test_the_explorer_begins_with_the_textbook_case(page):
    assert sizes_of(page) == [15, 9, 12, 5, 3, 6]
    assert (number(page, "loads"), number(page, "stores"), number(page, "length")) == (864, 135, 18)
    assert_closed_form(page)


@pytest.mark.parametrize(
    ("sizes", "diagonal"),
    [
        ((16, 10, 13, 5, 3, 6), None),
        ((1000, 700, 300, 64, 128, 32), None),
        ((1, 1, 1, 64, 64, 64), None),
        ((1024, 1024, 64, 128, 128, 32), 0),
        ((300, 500, 70, 64, 16, 32), 200),
        ((37, 21, 9, 6, 3, 4), -5),
        ((37, 21, 9, 6, 3, 4), -40),
    ],
)
def test_sizes_typed_in_give_the_closed_form(page, sizes, diagonal):
    choose(page, sizes, diagonal)
    assert sizes_of(page) == list(sizes)
    assert_closed_form(page, diagonal)


def test_sliders_and_arrow_keys_give_the_closed_form(page):
    from selenium.webdriver.common.keys import Keys

    choose(page, (15, 9, 12, 5, 3, 6))
    for name in SIZES:
        find(page, f"#explorer [name={name}-slider]").send_keys(Keys.ARROW_RIGHT * 4)
        assert_closed_form(page)
    assert sizes_of(page) == [22, 13, 16, 9, 7, 10]
    find(page, "#explorer [name=triangle]").send_keys(Keys.SPACE)
    bm, bn = sizes_of(page)[3:5]
    assert bm % bn == 0  # as for all triangular kernels
    find(page, "#explorer [name=bm-slider]").send_keys(Keys.END)
    assert sizes_of(page)[3] == 512
    assert_closed_form(page, 0)


def test_every_walk_adds_up_to_the_closed_form(page):
    draw = random.Random(0)
    problems = []
    for _ in range(300):
        m, n, k, bn, bk = (draw.randint(1, 60) for _ in range(5))
        diagonal = draw.choice([None, draw.randint(-70, 70)])
        problems.append((m, n, k, bn * draw.randint(1, 4), bn, bk, diagonal))
    names = [*SIZES, "diagonal"]
    walked = page.execute_script(
        """
        return arguments[0].map((problem) => {
            const path = walk(problem);
            let rises = true, last = path.at(0);
            for (let step = 1; step <= path.length; step++) {
                const now = path.at(step);
                rises = rises && now.loads > last.loads && now.stores >= last.stores;
                last = now;
            }
            return [path.a, path.b, path.stores, path.masked, path.tiles, last.loads, last.stores, rises];
        });
        """,
        [dict(zip(names, problem, strict=True)) for problem in problems],
    )
    for (*sizes, diagonal), found in zip(problems, walked, strict=True):
        expected = predicted_traffic(*sizes, diagonal=diagonal)
        totals = [expected.a.elements, expected.b.elements, expected.stores, expected.masked, expected.tiles]
        assert found == [*totals, expected.loads, expected.stores, True], (sizes, diagonal)


def test_the_walk_is_played_paused_and_stepped_with_the_keyboard(page):
    from selenium.webdriver.common.keys import Keys

    choose(page, (4, 6, 2, 2, 2, 1))
    play, forward, back = (find(page, f"#explorer [name={name}]") for name in ("play", "forward", "back"))
    forward.send_keys(Keys.ENTER)
    assert (number(page, "at"), number(page, "loaded"), number(page, "stored")) == (1, 4, 0)
    forward.send_keys(Keys.ENTER)
    assert (number(page, "at"), number(page, "loaded"), number(page, "stored")) == (2, 8, 4)
    assert "tile (0, 0)" in find(page, "canvas").get_attribute("aria-label")
    back.send_keys(Keys.SPACE)
    assert number(page, "at") == 1
    play.send_keys(Keys.ENTER)
    assert play.text == "Pause"
    wait(page, "Number(document.querySelector('[data-out=at]').textContent) > 1")
    play.send_keys(Keys.ENTER)
    assert play.text == "Play"
    find(page, "#explorer [name=step]").send_keys(Keys.END)
    assert number(page, "at") == number(page, "length") == 12
    assert (number(page, "loaded"), number(page, "stored")) == (number(page, "loads"), number(page, "stores"))


def test_a_tile_lights_up(page):
    choose(page, (4, 4, 4, 2, 2, 2))
    picture = "return document.querySelector('canvas').toDataURL()"
    seen = [page.execute_script(picture)]
    for _ in range(8):
        find(page, "#explorer [name=forward]").click()
        seen.append(page.execute_script(picture))
    assert len(set(seen)) == 9


def test_the_device_and_the_type_of_an_element_change_waves_and_bytes(page):
    choose(page, (1000, 1000, 64, 16, 16, 16))
    waves, moved = number(page, "waves"), number(page, "bytes")
    page.execute_script("""
        for (const [name, value] of [["device", "108"], ["itemsize", "2"]]) {
            const field = document.querySelector(`#explorer [name=${name}]`);
            field.value = value;
            field.dispatchEvent(new Event("change"));
        }""")
    assert waves == -(-63 * 63 // 132)
    assert number(page, "waves") == -(-63 * 63 // 108)
    assert number(page, "bytes") * 2 == moved
    page.execute_script("for (const field of document.querySelectorAll('#explorer select')) field.selectedIndex = 0")


def test_the_table_sorts_by_value_up_and_down_with_the_keyboard(page):
    from selenium.webdriver.common.keys import Keys

    table = find(page, "#records table")
    headings = table.find_elements("css selector", "th button")
    column = [heading.text for heading in headings].index("median, ms")
    heading = headings[column]

    def medians():
        cells = table.find_elements("css selector", f"td:nth-child({column + 1})")
        return [float(cell.get_attribute("data-value")) for cell in cells]

    heading.send_keys(Keys.ENTER)
    assert medians() == sorted(medians())
    heading.send_keys(Keys.ENTER)
    assert medians() == sorted(medians(), reverse=True)
    assert heading.find_element("xpath", "..").get_attribute("aria-sort") == "descending"


@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_and_follows_the_colour_scheme(page, width, scheme):
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    metrics = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 500}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    wait(page, f"document.documentElement.scrollWidth <= {width}")
    # A chart's words end where the chart ends.
    wait(
        page, "[...document.querySelectorAll('[data-chart] svg')].every((svg) => svg.getBoundingClientRect().right <= innerWidth)"
    )
    background = page.execute_script("return getComputedStyle(document.body).backgroundColor")
    lightness = sum(map(int, background.removeprefix("rgb(").rstrip(")").split(","))) / 765
    assert lightness < 0.2 if scheme == "dark" else lightness > 0.9


def test_every_control_has_a_name(page):
    nameless = page.execute_script("""
        return [...document.querySelectorAll("input, select, button, canvas")]
            .filter((element) => !(element.ariaLabel || element.labels?.length || element.textContent.trim()))
            .map((element) => element.outerHTML)""")
    assert nameless == []
