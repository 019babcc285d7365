#!/usr/bin/env python3
"""Judges the histories that clients of Tryst wrote, each alone: checker.py FOLDER.

It shares nothing with what it judges: it imports no part of Tryst and none of its tests, and knows only what the documents
promise. ./run audit calls it; docs/TESTING.md ("Audit") says what each rule stands on.

Every file of FOLDER is a history, one event a line, words apart by a blank, times in microseconds of the machine's
monotonic clock. A client's (NAME.history, of one life of a worker) has

  L LIFE T                                         the life begins
  S CALL STREAM KEY SEQ SIZE SUM T                 a send is about to be called
  s CALL CODE T                                    it has returned
  R CALL STREAM KEY TIMEOUT WAY T                  a receive is about to be called; TIMEOUT in ms, -1: none
  r CALL CODE T [STREAM KEY SEQ SIZE SUM]          it has ended; with what its bytes say of themselves, and their sum
  M CALL WORDS...                                  the words with which it failed: for people
  K CALL T                                         its cancel is about to be called
  B CALL SUM SUM                                   of its caller's memory, when it had failed and much later
  C STREAM T                                       the step of the stream is about to be cleaned up here
  P STREAM PATH                                    the path in use, when the stream was over
  E T                                              the life ends by itself; everything has ended

and that of the one who does the harm (audit.history)

  allow WHAT N T                                   a figure that the judgement uses: see ALLOWED
  life LIFE WORKER LIMIT_KIB T                     a process is started
  stream STREAM PRODUCER CONSUMER PATH T           two lives are told to send and to receive
  kill|stop|cont LIFE T                            a fault of a process begins or ends
  cut|heal|slow|fast HOST HOST T                   a fault of the wire between two hosts does
  step LIFE SECONDS T                              its clock of the day is so much ahead; it explains nothing
  disk LIFE MS T                                   each call for a file takes it so long; likewise
  stuck STREAM T                                   nothing was received for long, nobody had an explanation, it was given up
  memory LIFE KIB T                                what it has resident
  held MS T                                        so long before T a thread that only wanted to run did not: the machine is busy
  exit LIFE CODE T                                 it has ended; a negative code is a signal
  end T

WAY is `fresh` (memory of the library's), `into` (of the caller's), `view` (by reference), `each` (several keys in one call,
whose ends are seen when all have ended), `many` (likewise, and all count as failed when one fails) or `task` (given up by the
program, whatever it was about to get).
"""
import bisect
import collections
import os
import sys

# What a call may take beyond its deadline, and beyond the patience where it has none; for how long after a fault it may still
# explain a failure; what a life may grow by, and how long it takes until its pools are in use; what a life's limit allows
# beside its pools; how old the last word of a peer may be that has nothing to say; and how long a producer keeps what a
# consumer asked for that is away. See `allow`.
ALLOWED = {"slack_ms": 3000, "patience_ms": 8000, "after_ms": 3000, "growth_kib": 32768, "growth_after_s": 400, "quiet_ms": 3000,
           "keep_ms": 20000, "base_kib": 1 << 40}
OF_TIME = ("ended", "late", "failed", "path")  # Rules that a machine can break which lets nobody run.
BUSY_SHARE = 0.2
OK, CANCELLED, DEADLINE, EXHAUSTED, ABORTED, UNAVAILABLE = 0, 1, 4, 8, 10, 14
SEEN_TOGETHER, MAY_DROP = ("many", "each"), ("many", "task")  # Values of WAY.
EXAMPLES = 5
PART_BYTES = 64 << 20  # Histories are read so much at once.

RULES = {
    "once": "no send is received twice, and no call ends twice",
    "invented": "what is received was sent",
    "bytes": "its bytes are those that were sent under that key and number",
    "order": "a key's tensors come in the order of their sends to receives in the order of their calls",
    "overtaken": "no receive gets a tensor past an earlier one that still waits and then fails",
    "lost": "what was sent is received, unless a process has died",
    "ended": "every call ends, and no stream stands still",
    "late": "by its deadline, or by the patience, and the allowance",
    "failed": "a call fails for a reason that there was, and not before its deadline",
    "landed": "no byte comes into memory whose receive has failed",
    "memory": "resident memory stays within the limits' sum, and does not grow",
    "exits": "nobody ends by himself but when told to, and then with 0",
    "path": "a pair takes the best path that it has",
}


class Malformed(Exception):
    pass


class Send:
    __slots__ = ("life", "key", "seq", "size", "sum", "begun", "code", "ended", "got")

    def __init__(self, life, key, seq, size, total, begun):
        self.life, self.key, self.seq, self.size, self.sum, self.begun = life, key, seq, size, total, begun
        self.code = self.ended = self.got = None


class Receive:
    __slots__ = ("life", "call", "key", "timeout", "way", "begun", "code", "ended", "said", "cancelled")

    def __init__(self, life, call, key, timeout, way, begun):
        self.life, self.call, self.key, self.timeout, self.way, self.begun = life, call, key, timeout, way, begun
        self.code = self.ended = self.said = self.cancelled = None

    def __str__(self):
        return "receive %d of %s, key %s" % (self.call, self.life, self.key)


class Spans:
    """Times from when till when something was so."""

    def __init__(self):
        self.spans = []

    def begin(self, at):
        self.spans.append([at, None])

    def end(self, at):
        if self.spans and self.spans[-1][1] is None:
            self.spans[-1][1] = at

    def within(self, begin, end):
        """How much of it lies between the two."""
        return sum(max(0, min(end, end if to is None else to) - max(begin, since)) for since, to in self.spans)

    def touches(self, begin, end):
        return any(since <= end and (to is None or to >= begin) for since, to in self.spans)


class Life:
    def __init__(self, name, worker, limit_kib, begun):
        self.name, self.worker, self.limit_kib, self.begun = name, worker, limit_kib, begun
        self.killed = self.exit = self.said_end = None
        self.stops = Spans()
        self.memory = []


class Stream:
    def __init__(self, name, producer, consumer, path, begun):
        self.name, self.producer, self.consumer, self.path, self.begun = name, producer, consumer, path, begun
        self.stuck = None


class Harm:
    """What was done to whom: audit.history."""

    def __init__(self):
        self.allowed = dict(ALLOWED)
        self.lives, self.streams = {}, {}
        # The keys are pairs of hosts.
        self.cuts, self.slow = collections.defaultdict(Spans), collections.defaultdict(Spans)
        self.held = Spans()
        self.ended = None

    def read(self, words):
        kind, at = words[0], int(words[-1])
        if kind == "allow":
            self.allowed[words[1]] = int(words[2])
        elif kind == "life":
            self.lives[words[1]] = Life(words[1], words[2], int(words[3]), at)
        elif kind == "stream":
            self.streams[words[1]] = Stream(words[1], self.lives[words[2]], self.lives[words[3]], words[4], at)
        elif kind == "kill":
            self.lives[words[1]].killed = at
        elif kind == "stop":
            self.lives[words[1]].stops.begin(at)
        elif kind == "cont":
            self.lives[words[1]].stops.end(at)
        elif kind in ("cut", "slow"):
            (self.cuts if kind == "cut" else self.slow)[tuple(sorted(words[1:3]))].begin(at)
        elif kind in ("heal", "fast"):
            (self.cuts if kind == "heal" else self.slow)[tuple(sorted(words[1:3]))].end(at)
        elif kind in ("step", "disk"):
            pass  # Every promise holds beside it.
        elif kind == "stuck":
            self.streams[words[1]].stuck = at
        elif kind == "memory":
            self.lives[words[1]].memory.append((at, int(words[2])))
        elif kind == "exit":
            self.lives[words[1]].exit = (int(words[2]), at)
        elif kind == "held":
            self.held.begin(at - int(words[1]) * 1000)
            self.held.end(at)
        elif kind == "end":
            self.ended = at
        else:
            raise ValueError("no event " + kind)

    def too_busy(self):
        """Why nothing is to be said of times here; "": it is."""
        lengths = [to - since for since, to in self.held.spans]
        begun = min((life.begun for life in self.lives.values()), default=0)
        share = sum(lengths) / max(1, self.ended - begun)
        longest = max(lengths, default=0) // 1000
        if longest > self.allowed["patience_ms"] // 2 or share > BUSY_SHARE:
            return "the machine let nobody run for %d ms at once, for %d %% of the time" % (longest, share * 100)
        return ""

    def between(self, stream):
        """When the wire between the two was cut, and when it was slow."""
        hosts = tuple(sorted((host_of(stream.producer.worker), host_of(stream.consumer.worker))))
        return (self.cuts[hosts], self.slow[hosts]) if hosts[0] != hosts[1] else (Spans(), Spans())

    def former(self, stream):
        """When former lives of the producer stood still, or were over and this one had not begun the stream."""
        spans = []
        for life in self.lives.values():
            if life.worker == stream.producer.worker and life.begun < stream.producer.begun:
                over = Spans()
                if life.killed is not None:
                    over.begin(life.killed)
                    over.end(stream.begun)
                spans += [life.stops, over]
        return spans


def host_of(worker):
    """A worker's name begins with its host's: b.py1 is of b."""
    return worker.split(".", 1)[0]


class Findings:
    def __init__(self):
        self.counts = collections.Counter()  # (rule, path)
        self.judged = collections.Counter()  # Likewise: how often it was applied.
        self.examples = []
        self.figures = collections.Counter()

    def note(self, rule, path, text):
        self.counts[rule, path] += 1
        if self.counts[rule, path] <= EXAMPLES:
            self.examples.append("%s, %s: %s" % (rule, path, text))

    def look(self, rule, path, count=1):
        self.judged[rule, path] += count


class OneStream:
    """The calls of one stream at both ends, and their judgement."""

    def __init__(self, stream, harm, findings):
        self.stream, self.harm, self.findings = stream, harm, findings
        self.path = stream.path
        self.cuts, self.slow = harm.between(stream)
        self.former = harm.former(stream)
        self.troubles = (stream.producer.stops, self.cuts, self.slow)
        self.sends, self.receives = {}, {}  # By life and call.
        self.cleaned = {}  # By life.
        self.sums = []
        self.may_wait = False  # For a tensor that the program dropped.
        self.slack = harm.allowed["slack_ms"] * 1000
        self.patience = harm.allowed["patience_ms"] * 1000
        self.after = harm.allowed["after_ms"] * 1000
        self.quiet = harm.allowed["quiet_ms"] * 1000

    def note(self, rule, text):
        self.findings.note(rule, self.path, "stream %s: %s" % (self.stream.name, text))

    def read(self, life, words):
        kind = words[0]
        if kind == "S":
            self.sends[life, int(words[1])] = Send(life, words[3], int(words[4]), int(words[5]), words[6], int(words[7]))
        elif kind == "s":
            send = self.sends[life, int(words[1])]
            if send.code is not None:
                self.note("once", "send %s of %s ended twice" % (words[1], life))
            send.code, send.ended = int(words[2]), int(words[3])
        elif kind == "R":
            call = int(words[1])
            self.receives[life, call] = Receive(life, call, words[3], int(words[4]), words[5], int(words[6]))
        elif kind == "r":
            receive = self.receives[life, int(words[1])]
            if receive.code is not None:
                self.note("once", "%s ended twice" % receive)
            receive.code, receive.ended = int(words[2]), int(words[3])
            if len(words) == 9:
                receive.said = (words[4], words[5], int(words[6]), int(words[7]), words[8])
        elif kind == "K":
            self.receives[life, int(words[1])].cancelled = int(words[2])
        elif kind == "B":
            self.sums.append((self.receives[life, int(words[1])], words[2], words[3]))
        elif kind == "C":
            self.cleaned.setdefault(life, int(words[2]))
        elif kind == "P":
            self.judge_path(words[2])

    def judge(self):
        for rule in ("once", "invented", "bytes", "order", "overtaken", "lost", "ended", "late", "failed", "landed"):
            self.findings.look(rule, self.path, len(self.receives))
        by_key = collections.defaultdict(lambda: ({}, []))
        for send in self.sends.values():
            self.judge_send(send)
            sent = by_key[send.key][0]
            # One that failed was not sent, and its number is used again.
            if send.code in (None, OK) or send.seq not in sent:
                sent[send.seq] = send
        for receive in self.receives.values():
            by_key[receive.key][1].append(receive)
        for sent, receives in by_key.values():
            self.judge_key(sent, receives)
        for receive, then, later in self.sums:
            if then != later:
                self.note("landed", "the memory of %s changed after it had failed with %s" % (receive, receive.code))
        if self.stream.stuck is not None and not self.may_wait:
            self.note("ended", "nothing came until it was given up at %d, and nobody said why" % self.stream.stuck)
        figures = self.findings.figures
        figures["sends"] += sum(send.code == OK for send in self.sends.values())
        figures["receives"] += sum(receive.code == OK for receive in self.receives.values())
        figures["bytes"] += sum(receive.said[3] for receive in self.receives.values() if receive.said)
        for receive in self.receives.values():
            if receive.code:
                figures["code %d" % receive.code] += 1

    # ---- One call ----

    def stopped(self, name, begin, end):
        """For how long the life did not run: it was stopped, or the machine let nobody run."""
        return self.harm.lives[name].stops.within(begin, end) + self.harm.held.within(begin, end)

    def alive_at_end(self, life):
        """Whether it should have ended all that it began."""
        return life.killed is None and self.harm.ended is not None

    def judge_send(self, send):
        life = self.stream.producer
        if send.code is None:
            if self.alive_at_end(life):
                self.note("ended", "send of %s %d did not return" % (send.key, send.seq))
            return
        took = send.ended - send.begun - self.stopped(send.life, send.begun, send.ended)
        if took > self.slack:
            self.note("late", "send of %s %d took %d ms; a send never waits" % (send.key, send.seq, took // 1000))
        cleaned = self.cleaned.get(send.life)
        over = cleaned is not None and cleaned <= send.ended
        if send.code not in (OK, EXHAUSTED) and not (send.code == ABORTED and over):
            self.note("failed", "send of %s %d: code %d" % (send.key, send.seq, send.code))

    def judge_key(self, sent, receives):
        receives.sort(key=lambda receive: receive.call)
        met = []  # (receive, send)
        for receive in receives:
            send = self.judge_content(receive, sent) if receive.code == OK else None
            if send is not None:
                met.append((receive, send))
            if self.judge_end(receive, send) and receive.code not in (None, OK):
                self.judge_failure(receive)
        self.judge_order(met)
        self.judge_overtaking(receives)
        self.judge_losses(sent, receives)

    def judge_content(self, receive, sent):
        """The send that it got, or None."""
        stream, key, seq, size, total = receive.said or ("?", "?", -1, -1, "?")
        if stream != self.stream.name or key != receive.key:
            self.note("bytes", "%s got what says that it is %s of key %s in stream %s" % (receive, seq, key, stream))
            return None
        send = sent.get(seq)
        if send is None or send.code not in (OK, None, ABORTED):
            self.note("invented", "%s got number %d, which was not sent" % (receive, seq))
            return None
        if (size, total) != (send.size, send.sum):
            self.note("bytes", "%s: of number %d, %d bytes with sum %s became %d with %s" %
                      (receive, seq, send.size, send.sum, size, total))
        if receive.ended < send.begun:
            self.note("invented", "%s got number %d before it was sent" % (receive, seq))
        if send.got is not None:
            self.note("once", "%s and %s got number %d" % (send.got, receive, seq))
        else:
            send.got = receive
        return send

    def judge_end(self, receive, send):
        """Whether it has ended. Judges when."""
        life = self.stream.consumer
        if receive.code is None:
            if self.alive_at_end(life):
                self.note("ended", "%s, begun at %d, never ended" % (receive, receive.begun))
            return False
        begun, ended = receive.begun, receive.ended
        held = self.stopped(receive.life, begun, ended)
        # Counts the time that another trouble explains.
        trouble = sum(spans.within(begun, ended) for spans in self.troubles)
        since = begun
        if receive.timeout >= 0:
            due = begun + receive.timeout * 1000
            if receive.way == "into":  # The caller's memory is given back on the peer's last word: by the patience.
                due += self.patience + trouble
        else:
            # Since when there was something to end it: its tensor, or the latest fault.
            if send is not None:
                since = max(begun, send.ended or send.begun)
            else:
                reasons = [self.stream.producer.killed, self.cleaned.get(receive.life), receive.cancelled]
                for spans in (self.stream.producer.stops, self.stream.consumer.stops, self.cuts, self.slow):
                    reasons += [at for span in spans.spans for at in span]
                since = max([begun] + [at for at in reasons if at is not None and at < ended])
            due = since + self.patience + trouble
        if receive.cancelled is not None and receive.cancelled < ended:
            due = min(due, max(receive.cancelled, begun))
        if receive.timeout < 0 and receive.way in SEEN_TOGETHER:
            return True  # It waits for tensors of other keys, too.
        if ended - held - self.slack > due:
            self.note("late", "%s (%s, timeout %d ms, code %d) ended %d ms after it had to, after %d ms in all, at %d" %
                      (receive, receive.way, receive.timeout, receive.code, (ended - held - due) // 1000,
                       (ended - begun) // 1000, ended))
        return True

    def judge_failure(self, receive):
        code, begun, ended = receive.code, receive.begun, receive.ended
        if code == DEADLINE:
            if receive.timeout < 0:
                self.note("failed", "%s ended by a deadline that it had not" % receive)
            elif ended < begun + receive.timeout * 1000 - 1000:
                self.note("failed", "%s ended %d ms before its deadline" %
                          (receive, (begun + receive.timeout * 1000 - ended) // 1000))
            return
        if code == CANCELLED and receive.cancelled is not None and receive.cancelled <= ended:
            return
        cleaned = self.cleaned.get(receive.life)
        if code in (ABORTED, CANCELLED, UNAVAILABLE) and cleaned is not None and cleaned <= ended:
            return
        if code in (ABORTED, UNAVAILABLE) and self.explained(begun, ended):
            since = ended - self.patience - self.slack
            for _ in range(3):  # Back to where the consumer has run for so long.
                since = ended - self.patience - self.slack - self.stopped(receive.life, since, ended)
            # The silence of the life before counts until the consumer has met this one.
            away = sum(spans.within(since, ended) for spans in (*self.troubles, *self.former))
            if code == UNAVAILABLE and not self.producer_left(ended) and away < self.patience - self.quiet:
                self.note("failed", "%s (%s) gave up at %d after its producer had been away for %d ms: its patience is %d ms" %
                          (receive, receive.way, ended, away // 1000, self.patience // 1000))
            return
        self.note("failed", "%s (%s) failed with code %d at %d, for no reason that was given" %
                  (receive, receive.way, code, ended))

    def explained(self, begun, ended):
        """Whether something was done that may fail a call of the stream: to either process, or to the wire between them."""
        since = begun - self.patience - self.after
        faults = (self.stream.producer.stops, self.stream.consumer.stops, self.cuts)
        return self.producer_left(ended) or any(spans.touches(since, ended) for spans in faults)

    def producer_left(self, ended):
        """Whether the producer's process, or its step, was over by then."""
        producer = self.stream.producer
        ends = (producer.killed, producer.said_end, self.cleaned.get(producer.name))
        return any(at is not None and at <= ended for at in ends)

    # ---- The calls of one key ----

    def judge_order(self, met):
        """`met` is in the order of the receives' calls, which one thread made; so did one the sends."""
        last = None
        for receive, send in met:
            if last is not None and send.seq < last[1].seq:
                self.note("order", "%s got number %d after %s had got %d" % (receive, send.seq, last[0], last[1].seq))
            else:
                last = (receive, send)

    def judge_overtaking(self, receives):
        """Of two receives the earlier gets the tensor, as long as it waits."""
        longest = None  # The earlier one that had to wait longest, and failed.
        for receive in receives:
            if receive.code == OK and longest is not None and receive.ended < longest[0]:
                self.note("overtaken", "%s got number %d at %d while %s, begun earlier, waited until %d" %
                          (receive, receive.said[2] if receive.said else -1, receive.ended, longest[1], longest[0]))
            if receive.code == DEADLINE and receive.timeout >= 0 and receive.way not in MAY_DROP:
                until = receive.begun + receive.timeout * 1000
                if receive.cancelled is not None:
                    until = min(until, receive.cancelled)
                if longest is None or until > longest[0]:
                    longest = (until, receive)

    def judge_losses(self, sent, receives):
        stream = self.stream
        lost = [send for send in sent.values() if send.code == OK and send.got is None]
        if not lost:
            return
        # A receive that failed takes nothing along; but where one of several failed, or the program gave up, what came is dropped.
        dropped = sum(receive.code not in (None, OK) and receive.way in MAY_DROP for receive in receives)
        if stream.producer.killed is not None or stream.consumer.killed is not None:
            self.findings.figures["lost with a process that died"] += len(lost)
        elif self.was_away(self.harm.allowed["keep_ms"] * 1000):
            self.may_wait = True
            self.findings.figures["lost by who was away for longer than is kept"] += len(lost)
        elif len(lost) <= dropped:
            self.may_wait = True
            self.findings.figures["dropped by a call of several, or a task"] += len(lost)
        else:
            self.note("lost", "key %s: %s, although both lived; its receives failed with %s" %
                      (lost[0].key, ", ".join("%d (sent at %d)" % (send.seq, send.ended) for send in lost[:4]),
                       sorted({receive.code for receive in receives if receive.code not in (None, OK)})))

    def was_away(self, longest):
        """Whether the two were apart for longer than that at once. No fault is meant to be: a machine may stand still."""
        troubles = (*self.troubles, self.stream.consumer.stops, self.harm.held)
        return any(to is not None and to - since > longest for spans in troubles for since, to in spans.spans
                   if to is None or to >= self.stream.begun)

    def judge_path(self, path):
        """The path at the end of the stream. Trouble moves a pair to a worse one for a while."""
        figures = self.findings.figures
        figures["streams that ended on " + path] += 1
        if path == self.path:
            self.findings.look("path", self.path)
        else:
            figures["streams of %s that ended elsewhere" % self.path] += 1


class Checker:
    def __init__(self, folder):
        self.folder = folder
        self.harm = Harm()
        self.findings = Findings()
        self.files = {}

    def lines(self, name):
        """The words of each line. A line that a kill cut off is none."""
        with open(os.path.join(self.folder, name), "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    continue
                yield number, line.decode("ascii").split()

    def run(self):
        for number, words in self.lines("audit.history"):
            try:
                self.harm.read(words)
            except (ValueError, KeyError, IndexError) as error:
                raise Malformed("audit.history:%d: %s (%s)" % (number, " ".join(words), error)) from error
        if self.harm.ended is None:
            raise Malformed("audit.history does not end")
        names = sorted(name for name in os.listdir(self.folder) if name.endswith(".history") and name != "audit.history")
        size = sum(os.path.getsize(os.path.join(self.folder, name)) for name in names)
        for name in names:
            life = name[:-len(".history")]
            if life not in self.harm.lives:
                raise Malformed("%s is of nobody that was started" % name)
            for _, words in self.lines(name):
                if words[0] == "E":
                    self.harm.lives[life].said_end = int(words[1])
        parts = size // PART_BYTES + 1
        for part in range(parts):
            self.judge_part(names, part, parts)
        self.judge_lives()
        return self.findings

    def judge_part(self, names, part, parts):
        """Reads all files, and judges the streams of one part: the memory for this is bounded."""
        streams = {name: OneStream(stream, self.harm, self.findings)
                   for i, (name, stream) in enumerate(self.harm.streams.items()) if i % parts == part}
        mine = set(streams)
        for name in names:
            life, of_call = name[:-len(".history")], {}
            for number, words in self.lines(name):
                kind = words[0]
                if kind in ("L", "E", "M"):
                    continue
                try:
                    if kind in ("S", "R"):
                        stream = words[2]
                        if stream in mine:
                            of_call[words[1]] = stream
                    elif kind in ("C", "P"):
                        stream = words[1]
                    else:
                        stream = of_call.get(words[1])
                        if stream is None and parts == 1:
                            raise ValueError("no call " + words[1])
                    if stream in mine:
                        streams[stream].read(life, words)
                    elif stream is not None and stream not in self.harm.streams:
                        raise ValueError("no stream " + stream)
                except (ValueError, KeyError, IndexError) as error:
                    raise Malformed("%s:%d: %s (%s)" % (name, number, " ".join(words), error)) from error
        for stream in streams.values():
            stream.judge()

    def judge_lives(self):
        for life in self.harm.lives.values():
            findings = self.findings
            findings.look("exits", "all")
            code, at = life.exit or (None, None)
            if life.killed is None and (code != 0 or life.said_end is None):
                findings.note("exits", "all", "%s ended with %s at %s" % (life.name, code, at))
            if life.memory:
                findings.look("memory", "all")
                at, most = max(life.memory, key=lambda one: one[1])
                if most > life.limit_kib:
                    findings.note("memory", "all", "%s had %d MiB at %d, and its limits are %d MiB" %
                                  (life.name, most >> 10, at, life.limit_kib >> 10))
                self.judge_growth(life)

    def judge_growth(self, life):
        """The least of the last quarter beside the least of the second one: tensors come and go, what stays grows. Pools may
        fill at any time: up to what the life had at first, and theirs."""
        times = [at for at, _ in life.memory]
        span = times[-1] - times[0]
        if span < self.harm.allowed["growth_after_s"] * 1000000:
            return
        def least(begin, end):
            low, high = (bisect.bisect_left(times, times[0] + span * part // 4) for part in (begin, end))
            return min((kib for _, kib in life.memory[low:high]), default=None)
        before, after = least(1, 2), least(3, 4)
        if before is None or after is None:
            return
        full = life.memory[0][1] + max(0, life.limit_kib - self.harm.allowed["base_kib"])
        if after - max(before, full) > self.harm.allowed["growth_kib"]:
            self.findings.note("memory", "all", "%s grew from %d to %d MiB in %d s, and began with %d" %
                               (life.name, before >> 10, after >> 10, span // 2000000, life.memory[0][1] >> 10))


def tell(findings, harm, skipped):
    """Prints what was found. A case is a rule on a path."""
    figures = findings.figures
    print("%d streams of %d lives: %d sends, %d received, %.2f GB" %
          (len(harm.streams), len(harm.lives), figures["sends"], figures["receives"], figures["bytes"] / 1e9))
    for name, count in sorted(figures.items()):
        if name not in ("sends", "receives", "bytes"):
            print("  %-44s %d" % (name, count))
    paths = sorted({stream.path for stream in harm.streams.values()}) + ["all"]
    passed = failed = 0
    for rule, text in RULES.items():
        cases = [(path, findings.counts[rule, path]) for path in paths
                 if findings.judged[rule, path] or findings.counts[rule, path]]
        if rule == "path":  # Some streams of every path have to end on it.
            cases = [(path, 0 if findings.judged[rule, path] else 1) for path in paths if path != "all"]
        if not cases:
            skipped.append("%s: there was nothing to judge" % rule)
        if rule in OF_TIME and harm.too_busy():
            skipped += ["%s, %s, %d times: %s" % (rule, path, count, harm.too_busy()) for path, count in cases if count]
            cases = [case for case in cases if not case[1]]
        for path, count in cases:
            passed += count == 0
            failed += count != 0
        print("%-9s %-22s %s" % ("FAILED" if any(count for _, count in cases) else "held", rule + ":",
                                 text + ("" if not any(count for _, count in cases) else
                                         " (" + ", ".join("%s: %d" % case for case in cases if case[1]) + ")")))
    for example in findings.examples:
        print("  " + example)
    for reason in skipped:
        print("SKIPPED   " + reason)
    print("\n%d passed, %d failed, %d skipped" % (passed, failed, len(skipped)), flush=True)
    return failed == 0 and passed > 0


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    checker = Checker(sys.argv[1])
    try:
        findings = checker.run()
    except Malformed as error:
        print("FAILED    the histories cannot be read: %s\n\n0 passed, 1 failed, 0 skipped" % error)
        sys.exit(1)
    sys.exit(0 if tell(findings, checker.harm, sys.argv[2:]) else 1)


if __name__ == "__main__":
    main()
