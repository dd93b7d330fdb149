#!/usr/bin/env python3
"""The page of jobs in headless Chromium, before a server of its own: states and texts, no times.
usage: jobs_page_test.py WEFT [unittest's arguments]"""
import os
import pathlib
import sys
import tempfile
import time
import unittest

from browser import PATIENCE, Page
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from servers import Server  # noqa: E402

WEFT = os.path.abspath(sys.argv.pop(1))
AUDIT = (pathlib.Path(__file__).parent / "audit.js").read_text()


class WithPage(unittest.TestCase):
    flags = ()

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.server = Server(WEFT, "--model", "models/pocket", "-o", cls.folder.name, "--drain-seconds", "0", "--max-steps", "1000",
                            *cls.flags, command="serve")

    @classmethod
    def tearDownClass(cls):
        if cls.server.end() != 0:
            raise AssertionError("the server did not end well")
        cls.folder.cleanup()

    def setUp(self):
        self.page = Page(self.server.url)
        self.wait("a form", "document.querySelector('#field-steps')")

    def tearDown(self):
        self.page.quit()

    def wait(self, words, code):
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if self.page.script(f"return Boolean({code})"):
                return
            time.sleep(0.05)
        raise AssertionError(f"the page never got there: {words}; {self.page.find('body').text}")

    def wait_for_state(self, state):
        self.wait(f"a job that is {state}", f"document.querySelector('#job').dataset.state === '{state}'")

    def fill(self, **fields):
        for name, value in fields.items():
            box = self.page.find(f"[name={name}]")
            box.clear()
            box.send_keys(value)

    def text(self, selector):
        return self.page.find(selector).text


class Looks(WithPage):
    def test_everything_has_a_name_and_contrast(self):
        self.page.script("document.querySelector('#more').open = true")
        for dark in (False, True):
            self.page.scheme(dark)
            self.assertEqual(self.page.script(AUDIT), [], f"dark: {dark}")

    def test_no_width_overflows(self):
        for width in (320, 360, 800, 1280, 1920):
            self.page.size(width)
            wide = self.page.script("return document.documentElement.scrollWidth")
            self.assertLessEqual(wide, width)

    def test_the_form_knows_the_model(self):
        self.assertEqual(self.page.find("[name=size]").get_attribute("placeholder"), "128x128")
        self.assertIn("one rank", self.text("#about"))
        self.assertIn("1 ... 1000", self.text("#field-steps-hint"))


class Draws(WithPage):
    def test_a_job_from_the_prompt_to_the_video(self):
        self.fill(prompt="a red ball <b>not bold</b>", num_frames="5", steps="2", size="64x64", seed="7")
        ActionChains(self.page.driver).click(self.page.find("#prompt")).key_down(Keys.CONTROL).send_keys(
            Keys.ENTER).key_up(Keys.CONTROL).perform()
        self.wait_for_state("completed")
        self.assertEqual(self.page.find("#bar").get_attribute("value"), "100")
        self.assertEqual(self.text("#job-prompt"), "a red ball <b>not bold</b>")
        self.assertIn("64x64, 5 frames, 2 steps, seed 7", self.text("#job-facts"))
        self.wait("a video", "document.querySelector('#result video')?.readyState >= 2")
        self.assertEqual(self.page.script("return document.querySelector('#result video').videoWidth"), 64)
        self.assertEqual(self.page.script(AUDIT), [])
        self.page.click("#again")
        self.assertEqual(self.page.find("[name=seed]").get_attribute("value"), "7")
        self.page.click("#forget")
        self.wait("a history without it", "!document.querySelector('#history').textContent.includes('not bold')")
        self.assertEqual(self.page.console(), [])

    def test_a_picture_is_shown_as_one(self):
        self.fill(prompt="a blue star", num_frames="1", steps="1", size="64x64")
        self.page.click("#draw")
        self.wait_for_state("completed")
        self.wait("a picture", "document.querySelector('#result img')?.naturalWidth === 64")

    def test_a_refusal_says_what_is_legal(self):
        self.fill(prompt="a ball", steps="0")
        self.page.click("#draw")
        self.wait("a refusal", "!document.querySelector('#refused').hidden")
        self.assertIn("steps is 0, legal: 1 ... 1000", self.text("#refused"))

    def test_a_running_job_is_cancelled(self):
        self.fill(prompt="a long job", num_frames="33", steps="1000")
        self.page.click("#draw")
        self.wait("steps", "document.querySelector('#job-detail').textContent.includes('step ')")
        self.page.click("#cancel")
        self.wait_for_state("cancelled")
        self.assertTrue(self.page.find("#forget").is_displayed())
        self.assertIn("cancelled", self.text("#history button[aria-current=true]"))


class Follows(WithPage):
    flags = ("--replicas", "2")

    def test_events_and_queue_by_keyboard_on_a_narrow_screen(self):
        self.page.size(360)
        self.assertIn("0 wait, 0 run; 2 replicas draw", self.text("#queue"))
        # Nothing is asked for again while the job runs: what changes comes as events.
        self.page.script("""
            window.asked = []; const real = window.fetch;
            window.fetch = (path, options) => { window.asked.push(path); return real(path, options); };""")
        self.fill(prompt="a ring", num_frames="33", steps="200", size="64x64")
        self.page.find("#prompt").send_keys(Keys.CONTROL, Keys.ENTER)
        self.wait("a first step", "document.querySelector('#job-detail').textContent.includes('step ')")
        self.assertIn("0 wait, 1 runs", self.text("#queue"))
        self.page.script("window.before = document.querySelector('#job-detail').textContent; window.asked = []")
        self.wait("another step", "document.querySelector('#job-detail').textContent !== window.before")
        job = self.page.script("return document.querySelector('#job').dataset.id")
        self.assertNotIn(f"/v1/jobs/{job}", self.page.script("return window.asked"))
        summary = self.page.find("#log summary")
        summary.send_keys(Keys.ENTER)
        self.assertIn("state: running", self.text("#events"))
        self.page.find("#cancel").send_keys(Keys.ENTER)
        self.wait_for_state("cancelled")
        self.wait("its last event", "document.querySelector('#events').textContent.includes('cancelled')")
        wide = self.page.script("return document.documentElement.scrollWidth")
        self.assertLessEqual(wide, 360)
        self.assertEqual(self.page.script(AUDIT), [])
        self.assertEqual(self.page.console(), [])


class Fails(WithPage):
    flags = ("--memory-limit", "60M")

    def test_a_job_that_does_not_fit_shows_what_would(self):
        self.fill(prompt="a ball", num_frames="33", size="512x512")
        self.page.click("#draw")
        self.wait("a refusal", "document.querySelector('#refused li')")
        self.assertIn("are available", self.text("#refused p"))
        self.assertTrue(self.text("#refused li").startswith("--"))


if __name__ == "__main__":
    unittest.main()
