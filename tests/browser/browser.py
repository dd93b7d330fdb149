"""A headless Chromium, for the tests and the benches of the pages."""
import json
import os
import pathlib
import shutil
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PATIENCE = 120  # seconds until something that does not happen is a fault
SKIPPED = 77

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
except ImportError:
    print("skipped: no python3-selenium (apps/setup.sh tests installs it)")
    sys.exit(SKIPPED)
for tool, package in (("chromium", "chromium"), ("chromedriver", "chromium-driver"), ("espeak-ng", "espeak-ng")):
    if not shutil.which(tool):
        print(f"skipped: no {package} (apps/setup.sh tests installs it)")
        sys.exit(SKIPPED)


class Page:
    """A page in a browser of its own."""

    def __init__(self, url, width=1280, height=900, dark=False):
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium")
        for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--mute-audio",
                     "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(service=Service(shutil.which("chromedriver")), options=options)
        self.size(width, height)
        self.scheme(dark)
        self.driver.get(url)

    def size(self, width, height=900):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})

    def scheme(self, dark):
        value = "dark" if dark else "light"
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "features": [{"name": "prefers-color-scheme", "value": value}]})

    def find(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def click(self, selector):
        self.find(selector).click()

    def script(self, code, *arguments):
        return self.driver.execute_script(code, *arguments)

    def measures(self, *names):
        """The counters that live.js keeps; one name gives its value alone."""
        found = self.script("return JSON.parse(JSON.stringify(window.weft))")
        return found[names[0]] if len(names) == 1 else found

    def wait(self, words, code):
        """Waits until the expression `code` is true, in which w is the page's counters."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if self.script(f"const w = window.weft; return Boolean({code})"):
                return
            time.sleep(0.05)
        measures = {name: value for name, value in self.measures().items() if name != "skewMs"}
        raise AssertionError(f"the page never got there: {words}; {json.dumps(measures)}; log: {self.log()}")

    def start(self):
        self.click("#start")
        self.wait("a first picture", "w.firstPictureMs !== null && w.totalFrames > 0")

    def say(self, text):
        self.script("document.querySelector('#speak').value = arguments[0]", text)  # typing takes seconds
        self.click("#speak-form button")

    def log(self):
        return self.find("#log").get_attribute("textContent")

    def console(self):
        """What the browser complains of."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]

    def quit(self):
        self.driver.quit()


def load():
    """The state of the machine, for the lines of a bench."""
    return {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 2)}
