"""The search page in a real browser."""

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from browsing import needs_browser, width_of
from playwright.sync_api import expect

pytestmark = needs_browser


@pytest.fixture(params=[True, False], ids=["with JavaScript", "without"])
def open_either(open_page, request):
    return lambda url, **settings: open_page(url, java_script_enabled=request.param, **settings)


def scores(page):
    return [float(text) for text in page.locator(".am-score").all_inner_texts()]


def paths(page):
    return page.locator(".am-place bdi").all_inner_texts()


def query_of(page):
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


def search_box(page):
    return page.get_by_role("searchbox", name="Search this memory")


# With and without JavaScript


@pytest.mark.parametrize(
    "q, path", [("certificate expired", "2026-03-14-incident"), ("数据库磁盘", "2026-07-07")]
)
def test_asking_finds_and_explains(open_either, sample, q, path):
    page = open_either(sample)
    search_box(page).fill(q)
    page.get_by_role("button", name="Search").click()
    first = page.locator(".am-hit").first
    assert path in first.locator(".am-place").inner_text()
    assert first.locator("mark").count() > 0
    parts = [float(number) for number in re.findall(r"\d\.\d+", first.locator(".am-parts").inner_text())]
    weight, vector, text_weight, text = parts
    assert scores(page)[0] == pytest.approx(weight * vector + text_weight * text, abs=0.002)
    assert scores(page) == sorted(scores(page), reverse=True)
    # The bar has the same parts, in hundredths.
    widths = [float(rect.get_attribute("width")) for rect in first.locator("svg.am-bar rect").all()]
    assert widths == pytest.approx([100 * weight * vector, 100 * text_weight * text], abs=0.2)
    assert "no. 1 by text" in first.locator(".am-ranks").inner_text()


def test_the_sql_opens_in_the_editor_with_the_same_scores(open_either, sample):
    page = open_either(f"{sample}?q=backup+restore")
    expected = scores(page)
    page.get_by_role("link", name="View and edit SQL").click()
    page.wait_for_url("**sql=**")
    shown = page.locator("td.col-score").all_inner_texts()
    assert [round(float(score), 3) for score in shown] == expected != []


def test_an_option_is_kept_in_the_address(open_either, sample):
    page = open_either(f"{sample}?q=backup&mode=keyword")
    page.get_by_label("k", exact=True).fill("2")
    page.get_by_role("button", name="Apply").click()
    page.wait_for_url("**k=2**")
    expect(page.locator(".am-hit")).to_have_count(2)
    assert query_of(page)["mode"] == "keyword"


def test_a_facet_leaves_its_own_alone(open_either, sample):
    page = open_either(f"{sample}?q=backup")
    facets = page.get_by_role("region", name="Facets")
    month = facets.get_by_role("link", name=re.compile(r"^\d{4}-\d\d$")).first
    chosen = month.inner_text()
    month.click()
    page.wait_for_url("**since=**")
    expect(facets.locator("a[aria-current]")).to_have_text(chosen)
    assert all(chosen in path for path in paths(page)) and paths(page)
    facets.get_by_role("link", name=f"Remove the filter {chosen}").click()
    page.wait_for_url(lambda url: "since=" not in url)


def test_dates_and_ages_are_said(open_either, sample):
    page = open_either(f"{sample}?q=WH-401+certificate+expired&now=2026-03-28")
    assert "Saturday 14 March 2026, 2 weeks ago" in page.locator(".am-place").first.inner_text()


def test_a_notice_and_an_error_are_shown(open_either, sample):
    page = open_either(f"{sample}?q=%3F%3F")
    assert "no word" in page.locator(".am-notice").last.inner_text()
    page.goto(f"{sample}?q=x&k=0")
    assert "k must be a whole number" in page.locator(".message-error").inner_text()


def test_results_can_be_taken_along(open_page, sample):
    page = open_page(f"{sample}?q=backup+restore&k=2")
    expected = paths(page)
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    table = download.value.path().read_text(encoding="utf-8")
    assert all(path in table for path in expected)
    page.get_by_role("link", name="Markdown for a prompt").click()
    assert page.locator("body").inner_text().startswith("# Memory about: backup restore")


# As one types


def test_it_answers_while_typing_and_back_leads_to_what_was_asked_before(open_page, sample):
    page = open_page(f"{sample}?q=backup")
    before = paths(page)
    search_box(page).fill("")
    search_box(page).press_sequentially("certificate expired", delay=20)
    page.wait_for_url("**q=certificate+expired**")
    expect(page.locator(".am-place").first).to_contain_text("2026-03-14")
    assert page.title().startswith("certificate expired")
    expect(page.get_by_role("status")).to_contain_text("results")
    # What was typed on the way is no step of the history.
    page.go_back()
    page.wait_for_url("**q=backup")
    expect(search_box(page)).to_have_value("backup")
    expect(page.locator(".am-place bdi").first).to_have_text(before[0])
    assert paths(page) == before
    page.go_forward()
    expect(page.locator(".am-place").first).to_contain_text("2026-03-14")


def test_an_answer_that_is_overtaken_is_never_shown(open_page, sample):
    page = open_page(sample)
    slow = []

    def hold(route):
        if "q=backup" in route.request.url and not slow:
            slow.append(route)  # answered when the next one is there
        else:
            route.continue_()

    page.route("**/agent-memory?q=*", hold)
    search_box(page).fill("backup")
    expect(page.locator("#am-answer")).to_have_attribute("aria-busy", "true")
    search_box(page).fill("certificate expired")
    expect(page.locator(".am-place").first).to_contain_text("2026-03-14")
    assert len(slow) == 1
    aborted = []
    page.on("requestfailed", lambda request: aborted.append(request.url))
    slow[0].abort()
    page.wait_for_timeout(100)
    assert "2026-03-14" in paths(page)[0]


def test_a_slider_changes_the_ranking_at_once_and_rows_move(open_page, sample):
    page = open_page(f"{sample}?q=how+do+we+restore+a+backup&now=2026-12-01")
    page.evaluate(
        "window.moved = 0; const animate = Element.prototype.animate;"
        "Element.prototype.animate = function (frames, ...rest) {"
        "  if (frames?.[0]?.transform) window.moved += 1; return animate.call(this, frames, ...rest) }; 0"
    )
    ids = "hits => hits.map(hit => hit.dataset.amId)"
    before = page.locator(".am-hit").evaluate_all(ids)
    slider = page.get_by_role("slider", name="half life, as a slider")
    slider.fill("40")
    page.wait_for_url("**half_life=**")
    expect(page.locator(".am-parts").first).to_contain_text("decay")
    after = page.locator(".am-hit").evaluate_all(ids)
    assert after != before and set(after) & set(before)
    assert query_of(page)["half_life"] == page.get_by_role("spinbutton", name="half life").input_value()
    assert page.evaluate("window.moved") > 0


def test_the_slider_of_the_half_life_turns_decay_on(open_page, sample):
    page = open_page(f"{sample}?q=backup")
    page.get_by_role("slider", name="half life, as a slider").fill("10")
    page.wait_for_url("**half_life=**")
    assert query_of(page)["decay"] == "1"
    expect(page.locator(".am-parts").first).to_contain_text("decay")


def test_motion_is_left_out_where_it_is_not_wanted(open_page, sample):
    page = open_page(f"{sample}?q=backup", reduced_motion="reduce")
    page.evaluate("window.moved = 0; Element.prototype.animate = (frames) => { window.moved += 1 }; 0")
    page.get_by_role("slider", name="text weight, as a slider").fill("0")
    page.wait_for_url("**text_weight=0**")
    expect(page.locator("#am-answer")).not_to_have_attribute("aria-busy", "true")
    assert page.evaluate("window.moved") == 0


def test_keys_lead_everywhere(open_page, sample):
    page = open_page(f"{sample}?q=backup+restore")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "am-q"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    links = page.locator(".am-hit-link")
    assert links.nth(1).evaluate("link => link === document.activeElement")
    page.keyboard.press("ArrowUp")
    assert links.nth(0).evaluate("link => link === document.activeElement")
    page.keyboard.press("ArrowRight")
    more = page.locator(".am-more").first
    more.locator("pre, p").nth(1).wait_for()
    page.keyboard.press("Escape")
    assert more.get_attribute("open") is None
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "am-q"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url("**/file?path=**")


def test_the_defaults_are_those_of_the_question_that_stands_there(open_page, sample):
    page = open_page(f"{sample}?q=backup&decay=1&half_life=3")
    search_box(page).fill("certificate expired")
    page.wait_for_url("**q=certificate+expired**")
    expect(page.locator(".am-snippet mark").first).to_have_text(re.compile("certificate", re.IGNORECASE))
    page.get_by_role("link", name="Back to the defaults").click()
    page.wait_for_url("**/agent-memory?q=certificate+expired")
    expect(page.get_by_role("spinbutton", name="half life")).to_have_value("")
    expect(page.locator(".am-parts").first).not_to_contain_text("decay")


def test_what_is_being_composed_is_not_searched(open_page, sample):
    page = open_page(f"{sample}?q=backup")
    compose = (
        "([kind, value, composing]) => { const box = document.getElementById('am-q'); box.value = value;"
        " box.dispatchEvent(kind === 'input' ? new InputEvent(kind, { isComposing: composing })"
        " : new CompositionEvent(kind)) }"
    )
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.evaluate(compose, ["input", "shuju", True])
    page.wait_for_timeout(400)
    assert asked == []
    page.evaluate(compose, ["compositionend", "数据库", False])
    expect(page.locator(".am-hit mark").first).to_have_text("数据库")


def test_what_was_unfolded_stays_so(open_page, sample):
    page = open_page(f"{sample}?q=backup+restore")
    first = page.locator(".am-hit").first
    first.locator(".am-more > summary").click()
    first.locator(".am-more > div").wait_for()
    # Datasette 0.65 would close it with a click elsewhere.
    page.locator(".am-summary").click()
    assert first.locator(".am-more").get_attribute("open") is not None
    page.get_by_role("slider", name="min score, as a slider").fill("0.06")
    page.wait_for_url("**min_score=0.06**")
    expect(page.locator("#am-answer")).not_to_have_attribute("aria-busy", "true")
    assert first.locator(".am-more > div").count() == 1


def test_an_error_while_typing_leaves_the_answer_there(open_page, sample):
    page = open_page(f"{sample}?q=backup")
    page.get_by_role("spinbutton", name="min score").fill("7")
    page.get_by_text("min_score must be a number from 0 to 1").wait_for()
    assert page.locator(".am-hit").count() > 0


def test_the_page_does_not_jump_when_results_arrive(open_page, sample):
    page = open_page(f"{sample}?q=backup+restore")
    page.evaluate(
        "window.shifts = []; new PerformanceObserver(list => list.getEntries().forEach("
        "entry => window.shifts.push(entry.value))).observe({ type: 'layout-shift', buffered: true })"
    )
    # Not by keys: a shift within half a second of one would not count.
    page.evaluate("document.getElementById('am-q').value = 'certificate expired'")
    page.evaluate("document.getElementById('am-q').dispatchEvent(new Event('input', { bubbles: true }))")
    expect(page.locator(".am-place").first).to_contain_text("2026-03-14")
    page.wait_for_timeout(400)
    assert sum(page.evaluate("window.shifts")) < 0.1


def test_a_phone_has_everything_and_nothing_sticks_out(open_page, sample):
    page = open_page(f"{sample}?q=certificate+expired&k=3&decay=1", width=360, height=740)
    assert width_of(page) <= 360
    page.get_by_role("link", name="Tune and filter").click()
    assert page.get_by_role("slider", name="min score, as a slider").is_visible()


def test_a_filter_can_be_taken_away_where_it_leaves_nothing(open_either, sample):
    page = open_either(f"{sample}?q=backup&since=1999-01-01&until=1999-01-02&text_weight=0.5")
    assert page.locator(".am-hit").count() == 0
    page.get_by_role("link", name="Without the filter until").click()
    page.wait_for_url(lambda url: "until=" not in url)
    expect(page.locator(".am-hit").first).to_be_visible()
    assert query_of(page) == {"q": "backup", "since": "1999-01-01", "text_weight": "0.5"}


def test_arrows_scroll_where_no_result_has_the_focus(open_page, sample):
    page = open_page(f"{sample}?q=backup&k=30&min_score=0")
    page.evaluate("document.activeElement.blur(); scrollTo(0, 900)")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement === document.body && scrollY >= 900")


def test_only_what_is_seen_moves(open_page, sample):
    page = open_page(f"{sample}?q=backup&k=38&min_score=0&now=2026-12-01")
    page.evaluate(
        "window.moved = 0; const animate = Element.prototype.animate; Element.prototype.animate ="
        "function (...all) { window.moved += 1; return animate.apply(this, all) }; 0"
    )
    page.get_by_role("slider", name="half life, as a slider").fill("40")
    expect(page.locator(".am-parts").first).to_contain_text("decay")
    hits = page.locator(".am-hit").count()
    assert hits > 15 and 0 < page.evaluate("window.moved") < hits / 2


# Both answers side by side


def test_what_moved_between_two_answers(open_either, sample):
    page = open_either(f"{sample}?q=restore+a+backup&text_weight=0.1&vector_weight=0.9")
    page.get_by_role("link", name="As OpenClaw saw it").click()
    ours, theirs = page.locator(".am-columns section").all()
    ids = [hit.get_attribute("data-am-id") for hit in theirs.locator(".am-hit").all()]
    for place, hit in enumerate(ours.locator(".am-hit").all(), 1):
        said = hit.locator(".am-elsewhere").inner_text()
        identifier = hit.get_attribute("data-am-id")
        if identifier in ids:
            assert f"result {ids.index(identifier) + 1} of the other" in said
            assert ("the same place" in said) == (ids.index(identifier) + 1 == place)
        else:
            assert "not in the other" in said


# All memories at once


def test_the_first_page_answers_while_typing_too(open_page, sample):
    home = sample.replace("/memory/-/", "/-/")
    page = open_page(home)
    assert page.locator(".am-memories").get_by_role("link", name="memory", exact=True).is_visible()
    page.get_by_role("searchbox", name="Search all memories").fill("certificate expired")
    page.wait_for_url("**q=certificate+expired")
    first = page.locator(".am-hit").first
    expect(first.locator(".am-place")).to_contain_text("memory · memory/2026-03-14-incident.md")
    page.go_back()
    expect(page.locator(".am-memories")).to_be_visible()
