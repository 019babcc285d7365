"""A headless Chromium, driven over WebDriver with nothing but Python's own library."""
import base64
import http.client
import json
import os
import re
import shutil
import subprocess
import tempfile

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # The name that the W3C's standard gives.


def missing():
    """Why there is no browser here; None: there is one."""
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return "needs " + program
    return None


class Browser:
    def __init__(self):
        # Not in TEST_TMPDIR: Chromium makes a socket here, and the path of a socket must be short.
        home = tempfile.mkdtemp(dir="/tmp")
        self.home = home
        self.log = open(os.path.join(home, "driver.log"), "w")
        self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE,
                                       stderr=self.log, text=True,
                                       env={**os.environ, "HOME": home, "TMPDIR": home})
        for line in self.driver.stdout:
            found = re.search(r"started successfully on port (\d+)", line)
            if found:
                self.port = int(found.group(1))
                break
        options = {"binary": shutil.which("chromium"),
                   "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-proxy-server",
                            "--disable-dev-shm-usage", "--window-size=1300,900",
                            "--user-data-dir=" + os.path.join(home, "profile")]}
        self.session = ""
        made = self.call("POST", "", {"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}})
        self.session = "/" + made["sessionId"]

    def call(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, "/session" + self.session + path,
                           json.dumps(body) if body is not None else None,
                           {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())["value"]
        connection.close()
        assert not (isinstance(answer, dict) and "error" in answer), answer
        return answer

    def open(self, url):
        self.call("POST", "/url", {"url": url})

    def find(self, css):
        return self.call("POST", "/element", {"using": "css selector", "value": css})[ELEMENT]

    def click(self, css):
        self.find(css)
        # At once: a page that draws itself anew leaves no time between finding and clicking.
        self.call("POST", "/execute/sync", {"script": "document.querySelector(arguments[0]).click()", "args": [css]})

    def text(self, css):
        """As a person sees it: what is hidden is not in it."""
        return self.call("GET", "/element/%s/text" % self.find(css))

    def complaints(self):
        """What the pages that were opened made the browser say; not what it says of its own."""
        return [said for said in self.call("POST", "/se/log", {"type": "browser"})
                if not said["message"].startswith("chrome://")]

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("GET", "/screenshot")))

    def close(self):
        if self.session:
            self.call("DELETE", "")
        self.driver.terminate()
        self.driver.wait(20)
        self.driver.stdout.close()
        self.log.close()
        shutil.rmtree(self.home, ignore_errors=True)
