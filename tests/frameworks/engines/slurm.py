#!/usr/bin/env python3
"""examples/deploy/train.sbatch under a real Slurm: slurmctld and a slurmd for each of three hosts.

  slurm.py PARAMETER_SERVER TRYSTD    the programs that it starts; needs root and Debian's slurmctld,
                                      slurmd, slurm-client and munge

The hosts are network namespaces of this machine. Neither cgroups nor systemd are used.
"""
import glob
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../../../tools")]
import case_report  # noqa: E402
import namespace  # noqa: E402

SCRIPT = os.path.join(HERE, "../../../examples/deploy/train.sbatch")
NODES = ["node1", "node2", "node3"]
PATIENCE_S = 120
TASKS_PER_NODE = 2
WORKERS = len(NODES) * TASKS_PER_NODE - 2

CONF = """
ClusterName=tryst
SlurmctldHost=control
SlurmUser=root
AuthType=auth/munge
# A job that is requeued starts when the credentials of its last start have expired.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
MailProg=/bin/true
ReturnToService=2
JobRequeue=1
KillWait=20
SlurmdParameters=config_overrides
NodeName=node[1-3] CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=10
"""


def until(what, ready, seconds=PATIENCE_S):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        got = ready()
        if got:
            return got
        time.sleep(0.2)
    raise AssertionError("waited %d s: %s" % (seconds, what))


class Slurm:
    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="tryst-slurm-")
        os.chmod(self.folder, 0o755)
        self.home = os.path.join(self.folder, "home")
        for name in ("home", "state", "snapshots", "cgroup"):
            os.mkdir(os.path.join(self.folder, name))
        self.hosts = namespace.Hosts(self.folder, NODES)
        conf = os.path.join(self.folder, "slurm.conf")
        with open(conf, "w") as file:
            file.write(CONF.format(folder=self.folder))
        # Nothing here uses cgroups, but slurmd wants to know their kind.
        with open(os.path.join(self.folder, "cgroup.conf"), "w") as file:
            file.write("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nCgroupMountpoint=%s/cgroup\n" % self.folder)
        os.environ.update(SLURM_CONF=conf, HOME=self.home)
        self.daemons = []
        key = os.path.join(self.folder, "munge.key")
        with open(key, "wb") as file:
            file.write(os.urandom(128))
        os.chmod(key, 0o400)
        self.start("munged", "--foreground", "--force", "--key-file=" + key,
                   *("--%s-file=%s/munge.%s" % (kind, self.folder, kind) for kind in ("pid", "log", "seed")),
                   "--socket=%s/munge.socket" % self.folder)
        until("munged", lambda: os.path.exists(self.folder + "/munge.socket"), 20)
        self.start("slurmctld", "-D", "-i", "-c")
        for node in NODES:
            self.start(*self.hosts.command(node, "slurmd", "-D", "-N", node))
        try:
            until("three idle nodes", lambda: self.ask("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "3", 60)
        except AssertionError as error:
            raise AssertionError("%s\n%s\n%s" % (error, self.ask("sinfo"), self.logs()))

    def start(self, *words):
        with open(os.path.join(self.folder, "daemons.log"), "a") as log:
            self.daemons.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def stop(self):
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    @staticmethod
    def ask(*words):
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        return done.stdout

    def logs(self):
        text = ""
        for name in sorted(glob.glob(self.folder + "/*.log")):
            with open(name, errors="replace") as file:
                text += "--- %s\n%s" % (os.path.basename(name), "".join(file.readlines()[-15:]))
        return text


class Job:
    def __init__(self, slurm, *words):
        self.slurm = slurm
        out = os.path.join(slurm.folder, "job-%j.out")
        said = slurm.ask("sbatch", "--nodes=%d" % len(NODES), "--ntasks-per-node=%d" % TASKS_PER_NODE,
                         "--open-mode=append", "--output=" + out, SCRIPT, *words)
        found = re.search(r"Submitted batch job (\d+)", said)
        if not found:
            raise AssertionError(said + slurm.logs())
        self.id = found.group(1)
        self.output = out.replace("%j", self.id)
        self.token = os.path.join(slurm.home, ".tryst-token-" + self.id)

    def field(self, name):
        found = re.search(r"\b%s=(\S+)" % name, self.slurm.ask("scontrol", "show", "job", self.id))
        return found.group(1) if found else ""

    def text(self):
        try:
            with open(self.output) as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def progress(self):
        return len(re.findall("^@progress", self.text(), re.M))

    def await_progress(self, more=8):
        wanted = self.progress() + more
        try:
            until("progress", lambda: self.progress() >= wanted)
        except AssertionError as error:
            raise AssertionError("%s\n%s\n%s" % (error, self.text()[-3000:], self.slurm.logs()))

    def await_state(self, *states):
        try:
            return until(" or ".join(states), lambda: self.field("JobState") in states)
        except AssertionError as error:
            raise AssertionError("%s, and the job is %s\n%s" % (error, self.field("JobState"), self.text()[-3000:]))

    def held_out(self):
        """The losses of the text that nobody learns from, in order."""
        found = re.findall(r"^@progress \S+ \S+ \S+ (\S+)$", self.text(), re.M)
        return [float(loss) for loss in found if float(loss) >= 0]

    def processes(self):
        """{rank: pid} of the job's tasks."""
        found = {}
        for path in glob.glob("/proc/[0-9]*/environ"):
            try:
                with open(path, "rb") as file:
                    words = file.read().split(b"\0")
                with open(path.replace("environ", "comm")) as file:
                    comm = file.read().strip()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            variables = dict(word.split(b"=", 1) for word in words if b"=" in word)
            ours = variables.get(b"SLURM_JOB_ID") == self.id.encode() and comm in ("parameter_serve", "trystd")
            if ours and b"SLURM_PROCID" in variables:
                found[int(variables[b"SLURM_PROCID"])] = int(path.split("/")[2])
        return found


class SlurmTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.slurm = Slurm()
        cls.addClassCleanup(cls.slurm.stop)

    def example(self, seconds, name):
        folder = os.path.join(self.slurm.folder, "snapshots", name)
        os.mkdir(folder)
        return Job(self.slurm, PROGRAMS[0], "--role=task", "--servers=2", "--workers=%d" % WORKERS,
                   "--seconds=%d" % seconds, "--folder=" + folder, "--patience=5s")

    def check_learnt(self, job):
        losses = job.held_out()
        self.assertGreater(len(losses), 1, job.text()[-3000:])
        self.assertLess(losses[-1], losses[0])

    def check_ended(self, job):
        until("no task is left", lambda: not job.processes(), 30)
        self.assertFalse(os.path.exists(job.token), "the token is left")

    def test_the_example_learns(self):
        job = self.example(6, "learns")
        job.await_state("COMPLETED", "FAILED")
        self.assertEqual((job.field("JobState"), job.field("ExitCode")), ("COMPLETED", "0:0"), job.text()[-3000:])
        self.check_learnt(job)
        self.check_ended(job)

    def test_a_task_that_is_killed_leaves_the_others_to_go_on(self):
        job = self.example(14, "killed")
        job.await_progress()
        tasks = job.processes()
        self.assertEqual(sorted(tasks), list(range(2 + WORKERS)))
        os.kill(tasks[max(tasks)], signal.SIGKILL)
        job.await_progress()
        job.await_state("FAILED", "COMPLETED")
        # Slurm reports 128 plus the signal.
        self.assertEqual((job.field("JobState"), job.field("ExitCode")), ("FAILED", "137:0"), job.text()[-3000:])
        self.assertEqual(len(re.findall(r"^\d+ updates$", job.text(), re.M)), 2, "the servers' clean ends")
        self.check_learnt(job)
        self.check_ended(job)

    def test_a_job_that_is_requeued_goes_on_from_its_snapshots(self):
        job = self.example(8, "requeued")
        job.await_progress(12)
        self.slurm.ask("scontrol", "requeue", job.id)
        until("started again", lambda: job.field("Restarts") == "1" and job.field("JobState") == "RUNNING")
        job.await_state("COMPLETED", "FAILED")
        self.assertEqual((job.field("JobState"), job.field("ExitCode")), ("COMPLETED", "0:0"), job.text()[-3000:])
        self.assertEqual(len(re.findall("goes on from its snapshot", job.text())), 2)
        self.check_learnt(job)
        self.check_ended(job)

    def test_a_job_that_is_cancelled_drains_and_leaves_nothing(self):
        job = Job(self.slurm)  # Runs trystd, by its name.
        until("all serve", lambda: len(re.findall("^serving ", job.text(), re.M)) == 2 + WORKERS)
        self.assertEqual(stat.S_IMODE(os.stat(job.token).st_mode), 0o600)
        start = time.monotonic()
        self.slurm.ask("scancel", job.id)
        job.await_state("CANCELLED")
        self.check_ended(job)
        self.assertLess(time.monotonic() - start, 18, "it was killed after KillWait, and did not end by itself")


def missing():
    lacks = [name for name in ("slurmctld", "slurmd", "munged", "sbatch") if shutil.which(name) is None]
    return "this machine lacks " + ", ".join(lacks) if lacks else None


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    PROGRAMS = [os.path.abspath(path) for path in sys.argv[1:3]]
    os.environ["PATH"] = "%s:/usr/sbin:/sbin:%s" % (os.path.dirname(PROGRAMS[1]), os.environ["PATH"])
    why = missing() or namespace.enter()
    if why:
        SlurmTest = unittest.skip(why)(SlurmTest)
    case_report.main()
