#!/usr/bin/env python3
"""The live page in headless Chromium, before a server of its own: states and counts, no times.
usage: live_page_test.py WEFT [unittest's arguments]"""
import os
import pathlib
import sys
import tempfile
import unittest
import wave

from browser import Page
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from servers import Server  # noqa: E402

WEFT = os.path.abspath(sys.argv.pop(1))
FAST = ("--model", "models/pocket_avatar", "--steps", "1", "--size", "64x64")  # keeps up on a machine that does other things, too
LONG_TEXT = "This is a long text, which takes the face a while to say. " * 12

# Faults that a person who cannot see, or sees little, would meet.
AUDIT = (pathlib.Path(__file__).parent / "audit.js").read_text()


class WithPage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(WEFT, *FAST)

    @classmethod
    def tearDownClass(cls):
        if cls.server.process.poll() is None:
            cls.server.end()

    def setUp(self):
        self.page = Page(self.server.url)

    def tearDown(self):
        self.page.quit()
        self.assertIsNone(self.server.process.poll(), f"the server ended: {self.server.text()[-2000:]}")


class Looks(WithPage):
    def test_everything_has_a_name_and_contrast(self):
        for dark in (False, True):
            self.page.scheme(dark)
            self.assertEqual(self.page.script(AUDIT), [], f"dark: {dark}")
        self.page.start()
        self.assertEqual(self.page.script(AUDIT), [])

    def test_no_width_overflows(self):
        for width in (320, 360, 800, 1280, 1920):
            self.page.size(width)
            wide = self.page.script("return document.documentElement.scrollWidth")
            self.assertLessEqual(wide, width)

    def test_the_audit_finds_faults(self):
        self.page.script("""
            document.querySelector("label[for=speak]").remove();
            document.querySelector("#mute").textContent = "";
            document.querySelector("#status").style.color = "#888";
            document.querySelector("#log").id = "speak";""")
        faults = "\n".join(self.page.script(AUDIT))
        for fault in ("textarea#speak has no name", "button#mute has no name", "p#status", "id speak"):
            self.assertIn(fault, faults)

    def test_an_unknown_container_is_refused_by_name(self):
        self.page.driver.get(self.server.url + "/?container=avi")
        self.page.click("#start")
        self.assertIn('"avi", legal: fmp4, annexb, jpeg', self.page.find("#error").text)
        self.assertEqual(self.page.measures("state"), "stopped")


class Plays(WithPage):
    def test_starts_and_stops(self):
        self.page.start()
        self.page.wait("two seconds of pictures", "w.totalFrames >= 50")
        self.assertEqual(self.page.measures("container"), "fmp4")
        self.page.click("#stop")
        self.assertEqual(self.page.measures("state"), "stopped")
        self.page.start()
        self.assertEqual(self.page.measures("errors"), [])
        self.assertEqual(self.page.console(), [])

    def test_other_containers_play_and_go_on(self):
        for container in ("annexb", "jpeg"):
            self.page.driver.get(f"{self.server.url}/?container={container}")
            self.page.start()
            self.assertEqual(self.page.measures("container"), container)
            self.page.say("Hello there.")
            self.page.wait("a face that speaks", "w.faceState === 'speaking'")
            self.page.script("weft.dropConnection()")
            self.page.wait("the same session", "w.reconnects === 1 && w.state === 'playing'")
            shown = self.page.measures("totalFrames")
            self.page.wait("more pictures", f"w.totalFrames > {shown + 25}")
            self.assertEqual(self.page.measures("errors"), [])
        self.assertEqual(self.page.console(), [])

    def test_a_text_makes_the_face_speak(self):
        self.page.say("Hello there.")  # this starts the session, too
        self.page.wait("a face that speaks", "w.faceState === 'speaking'")
        self.page.wait("a face that is done", "w.faceState === 'idle'")
        self.assertIsNotNone(self.page.measures("answerMs"))

    def test_an_interruption_ends_the_speech(self):
        self.page.start()
        for _ in range(2):
            self.page.say(LONG_TEXT)
            self.page.wait("a face that speaks", "w.faceState === 'speaking'")
            self.assertTrue(self.page.script("""
                document.querySelector("#interrupt").click();
                return document.querySelector("#video").muted"""), "it is still heard")
            self.page.wait("silence", "w.interrupts.at(-1).goneMs !== null")
            self.page.wait("a face that does not speak", "w.faceState !== 'speaking'")
            self.page.wait("sound again", "!document.querySelector('#video').muted")
        self.assertIn("Interrupted.", self.page.log())

    def test_a_sound_file_is_spoken(self):
        with tempfile.NamedTemporaryFile(suffix=".wav") as file:
            with wave.open(file.name, "wb") as sound:
                sound.setparams((1, 2, 22050, 0, "NONE", ""))
                sound.writeframes(bytes(range(256)) * 300)
            self.page.find("#file").send_keys(file.name)
            self.page.start()
            self.page.click("#speak-file")
            self.page.wait("a face that speaks", "w.faceState === 'speaking'")
            self.page.wait("a file that is sent", "document.querySelector('#log').textContent.includes('is sent')")
        with tempfile.NamedTemporaryFile(suffix=".wav") as file:
            file.write(b"no sound")
            file.flush()
            self.page.find("#file").send_keys(file.name)
            self.page.click("#speak-file")
            self.page.wait("a refusal", "w.errors.length === 1")
            self.assertIn("cannot be read as sound", self.page.find("#error").text)

    def test_the_microphone_is_repeated_or_listened_to(self):
        """The browser's own microphone beeps once a second."""
        self.page.start()
        self.page.click("#microphone")
        self.page.wait("a face that speaks", "w.faceState === 'speaking'")
        self.page.click("#microphone")
        self.page.wait("a face that is done", "w.faceState === 'idle'")
        self.page.click("input[value=listen]")
        self.page.click("#microphone")
        self.page.wait("a face that listens", "w.faceState === 'listening'")

    def test_the_look_changes(self):
        self.page.start()
        moods = self.page.script("return [...document.querySelector('#mood').options].map((each) => each.value)")
        self.assertGreater(len(moods), 1)
        self.page.script("document.querySelector('#mood').value = arguments[0]", moods[-1])
        self.page.click("#look-form button")
        self.page.say("I changed.")
        self.page.wait("a face that speaks", "w.faceState === 'speaking'")
        self.assertEqual(self.page.measures("errors"), [])


class GoesOn(WithPage):
    def test_a_lost_connection_is_resumed(self):
        self.page.start()
        before = self.page.measures("sessionId")
        for count in (1, 2):
            self.page.script("weft.dropConnection()")
            self.page.wait("the same session", f"w.reconnects === {count} && w.state === 'playing'")
            packets = self.page.measures("packets")
            self.page.wait("more media", f"w.packets > {packets + 5}")
        self.assertEqual(self.page.measures("sessionId"), before)
        self.assertEqual(self.page.measures("newSessions"), 0)
        self.assertIn("Not connected: the connection is lost.", self.page.log())

    def test_a_killed_server_comes_back(self):
        self.page.start()
        before = self.page.measures("sessionId")
        port = self.server.port
        self.server.kill()
        self.page.wait("a page that says so", "w.state === 'reconnecting'")
        self.assertIn("Not connected", self.page.find("#status").text)
        type(self).server = Server(WEFT, *FAST, port=port)
        self.page.wait("a new session", "w.newSessions === 1 && w.state === 'playing'")
        shown = self.page.measures("totalFrames")
        self.page.wait("more pictures", f"w.totalFrames > {shown + 25}")
        self.assertIn("a new session begins", self.page.log())
        self.assertNotEqual(self.page.measures("sessionId"), before)


class Keyboard(WithPage):
    def press(self, *keys):
        ActionChains(self.page.driver).send_keys(*keys).perform()

    def focused(self):
        return self.page.script("return document.activeElement.id || document.activeElement.tagName")

    def test_tab_reaches_every_control_and_leaves(self):
        self.page.start()  # this enables all
        wanted = set(self.page.script("""
            const controls = [...document.querySelectorAll("button, input, select, textarea, summary, a")];
            // One radio button stands for its group.
            return controls.filter((each) => !each.disabled && each.checkVisibility() &&
                                             (each.type !== "radio" || each.checked))
                .map((each) => each.id || each.tagName)"""))
        self.page.script("document.activeElement.blur()")
        reached = set()
        for _ in range(3 * len(wanted)):
            self.press(Keys.TAB)
            reached.add(self.focused())
            outline = self.page.script("return getComputedStyle(document.activeElement).outlineStyle")
            if self.focused() != "BODY":
                self.assertNotEqual(outline, "none", self.focused())
        self.assertEqual(wanted - reached, set())
        self.assertIn("BODY", reached, "the focus never leaves the page")

    def test_a_session_by_keys_alone(self):
        while self.focused() != "start":
            self.press(Keys.TAB)
        self.press(Keys.ENTER)
        self.page.wait("a first picture", "w.firstPictureMs !== null")
        self.assertEqual(self.focused(), "stop", "the focus is on a button that works")
        self.press("t")
        self.assertEqual(self.focused(), "speak")
        ActionChains(self.page.driver).key_down(Keys.CONTROL).send_keys("a").key_up(Keys.CONTROL).perform()
        self.press("Is this it? " * 20, Keys.ENTER)  # letters are no shortcuts here
        self.assertEqual(self.page.measures("state"), "playing")
        self.page.wait("a face that speaks", "w.faceState === 'speaking'")
        self.press(Keys.ESCAPE)
        self.page.wait("silence", "w.interrupts.length === 1 && w.interrupts[0].goneMs !== null")
        self.press(Keys.TAB, "s")
        self.page.wait("the end", "w.state === 'stopped'")

    def test_shortcuts_can_be_switched_off(self):
        self.page.click("details:last-of-type summary")
        self.page.click("#shortcuts")
        self.press("s")
        self.assertEqual(self.page.measures("state"), "stopped")
        self.page.click("#shortcuts")
        self.press("s")
        self.page.wait("a start", "w.state !== 'stopped'")


class Key(unittest.TestCase):
    def test_the_password_opens_the_page_and_its_stream(self):
        key = "0123456789abcdef"
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(key)
            file.flush()
            server = Server(WEFT, *FAST, "--api-key-file", file.name)
        try:
            page = Page(server.url)
            try:
                self.assertNotIn("Weft live", page.driver.title)
                page.driver.get(server.url.replace("://", f"://any:{key}@"))
                page.start()
                self.assertEqual(page.measures("errors"), [])
            finally:
                page.quit()
        finally:
            server.end()


if __name__ == "__main__":
    unittest.main(verbosity=2, warnings="ignore")
