"""Hosts made of one: network namespaces on a bridge, each with an address and a name.

  namespace.enter()              starts this script again where processes, mounts and networks are
                                 its own: whatever it leaves behind ends with it
  Hosts(folder, ["node1", ...])  a namespace each; command() puts a command into one
"""
import os
import subprocess
import sys

INSIDE = "TRYST_ENGINES_INSIDE"


def enter():
    """Returns inside, or says why there is no inside."""
    if os.environ.get(INSIDE):
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        return None
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    own = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation=private"]
    needs = "ip link add br0 type bridge && mount -t tmpfs tmpfs /run && ip netns add probe"
    tried = subprocess.run([*own, "sh", "-c", needs], capture_output=True, text=True)
    if tried.returncode != 0:
        return "no network namespaces here: " + (tried.stderr.strip() or "unshare fails")
    sys.stdout.flush()
    os.execvpe(own[0], [*own, sys.executable, *sys.argv], dict(os.environ, **{INSIDE: "1"}))


def run(*words):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise AssertionError("%s: %s" % (" ".join(words), done.stdout))
    return done.stdout


class Hosts:
    """Ours is "control", 10.77.0.1; the n-th other is 10.77.0.(10 + n)."""

    def __init__(self, folder, names):
        self.names = names
        run("mount", "-t", "tmpfs", "tmpfs", "/run")
        run("ip", "link", "add", "br0", "type", "bridge")
        run("ip", "addr", "add", "10.77.0.1/24", "dev", "br0")
        run("ip", "link", "set", "br0", "up")
        run("hostname", "control")
        lines = ["127.0.0.1 localhost", "10.77.0.1 control"]
        for i, name in enumerate(names):
            run("ip", "netns", "add", name)
            run("ip", "link", "add", "v%d" % i, "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "link", "set", "v%d" % i, "master", "br0", "up")
            for words in (("addr", "add", "%s/24" % self.address(name), "dev", "eth0"),
                          ("link", "set", "eth0", "up"), ("link", "set", "lo", "up")):
                run("ip", "-n", name, *words)
            lines.append("%s %s" % (self.address(name), name))
        hosts = os.path.join(folder, "hosts")
        with open(hosts, "w") as file:
            file.write("\n".join(lines) + "\n")
        run("mount", "--bind", hosts, "/etc/hosts")

    def address(self, name):
        return "10.77.0.%d" % (10 + self.names.index(name))

    def cut(self, name, off=True):
        """The host's cable, pulled or put back."""
        run("ip", "link", "set", "v%d" % self.names.index(name), "down" if off else "up")

    @staticmethod
    def command(name, *words):
        return ["nsenter", "--net=/run/netns/" + name, *words]
