/*
 * Waiting, replay and epochs, with messages that get lost or come late: docs/MODELS.md says
 * what is covered. It knows no slots and no generations: a key has at most one ask out, which
 * a ticket names, and a transfer needs one of CREDITS credits.
 *
 * One consumer, one producer, two keys. Fetches 0 and 1 are of key 0, fetch 2 is of key 1, and
 * nothing is sent on key 0 before fetch 2 has ended: a dataflow step whose send depends on a
 * receive. The memory of fetches 0 and 2 is the caller's, fetch 1 takes a landing.
 *
 * BREAKS, LOSSES, CANCELS, LATE and FAILED_HELLOS bound what goes wrong. WITHOUT_... leaves out
 * one rule of docs/WIRE.md; then something has to be found.
 */
#ifndef BREAKS
#define BREAKS 1
#endif
#ifndef LOSSES
#define LOSSES 0
#endif
#ifndef CANCELS
#define CANCELS 1
#endif
#ifndef LATE
#define LATE 1
#endif
#ifndef FAILED_HELLOS
#define FAILED_HELLOS 0
#endif
#ifndef CREDITS
#define CREDITS 1
#endif

#define KEYS 2
#define FETCHES 3
#define LANDING FETCHES /* A destination that is no caller's memory. */
#define NOTHING 255
#define ROOM 8

#define KeyOf(f) ((f) / 2)
#define OwnMemory(f) ((f) != 1)
#define SendsOf(k) (2 - (k))

mtype = {
  REQUEST, CLAIM, PARK, CANCEL, UNWANTED, WAITS, REPLAYED, ACCEPTED, /* To the producer. */
  TENSOR, PARKED, HERE, GONE                                         /* To the consumer. */
};
/* What, epoch, key, ticket, and: the destination (REQUEST, CLAIM, TENSOR). The tensor of TENSOR
 * is that of the producer's entry; `number` carries it. `may_park` is a flag of REQUEST. */
typedef Message {
  mtype what;
  byte epoch;
  byte key;
  byte ticket;
  byte to;
  byte number;
  bool may_park
};
chan to_producer = [ROOM] of { Message };
chan to_consumer = [ROOM] of { Message };
/* One message of each direction that a connection left behind, to come at any later time. */
chan late_to_producer = [1] of { Message };
chan late_to_consumer = [1] of { Message };

/* ---- The connection ---- */
bool link = true;        /* The queue pairs of the present epoch work. */
bool serves = true;      /* The producer has not noticed that they do not. */
bool gap_to_producer;    /* A message was lost, and nobody knows yet. */
bool gap_to_consumer;
byte breaks_left = BREAKS;
byte losses_left = LOSSES;
byte failed_hellos_left = FAILED_HELLOS;

/* ---- The consumer ---- */
#define UNMADE 0
#define OPEN 1
#define FENCED 2 /* Cancelled; its memory may still be written, so it is not told. */
#define DELIVERED 3
#define ENDED 4
#define Over(f) (fetch[f] >= DELIVERED)
byte fetch[FETCHES];
bool lent[FETCHES]; /* The peer may write this fetch's memory. */

#define NONE 0
#define ASKED 1
#define PARKING 2
#define ASLEEP 3 /* Parked: waits without a credit. */
#define IS_HERE 4
#define LEAVING 5 /* Cancelled, and GONE has not come. */
byte ask[KEYS];
byte ticket[KEYS];
byte into[KEYS];
bool claims[KEYS]; /* ASKED by a CLAIM: of what was parked. */
byte accepted[KEYS];
byte delivered[KEYS]; /* How many tensors of the key. */
byte next_ticket = 1;
byte credits = CREDITS;
byte cancels_left = CANCELS;
byte epoch = 1;
bool up = true;
bool drained;

/* ---- The producer ---- */
#define WAITING 1
#define HAS 2  /* The outcome is here, the entry is parked. */
#define SENT 3 /* Written, and kept until it is accepted. */
byte entry[KEYS];
byte entry_ticket[KEYS];
byte entry_number[KEYS];
byte entry_to[KEYS];
bool entry_parked[KEYS];
bool entry_named[KEYS]; /* In this epoch. */
byte sent[KEYS];        /* Sends, ever. */
byte available[KEYS];   /* Bits: tensors in the rendezvous. */
byte producer_epoch = 1;

#define AllOver (Over(0) && Over(1) && Over(2))

/* What a process remembers between its steps would only multiply the states. */
#define clear(m) m.what = 0; m.epoch = 0; m.key = 0; m.ticket = 0; m.to = 0; m.number = 0; \
  m.may_park = 0

inline say_to_producer(word_, key_, ticket_, place_, may_park_) {
  assert(len(to_producer) < ROOM);
  to_producer ! word_, epoch, key_, ticket_, place_, 0, may_park_
}
inline say_to_consumer(word_, key_, ticket_, place_, number_) {
  assert(len(to_consumer) < ROOM);
  to_consumer ! word_, producer_epoch, key_, ticket_, place_, number_, false
}

/* ---- What the consumer does ---- */

/* The first fetch of the key that waits. */
#define Front(k) (k == 0 -> (fetch[0] == OPEN -> 0 : (fetch[1] == OPEN -> 1 : NOTHING)) \
                         : (fetch[2] == OPEN -> 2 : NOTHING))

inline lend(k) {
  head = Front(k);
  if
  :: head != NOTHING && OwnMemory(head) -> into[k] = head; lent[head] = true
  :: else -> into[k] = LANDING
  fi
}
inline give_back(f) {
  if
  :: f < FETCHES -> lent[f] = false; if :: fetch[f] == FENCED -> fetch[f] = ENDED :: else fi
  :: else
  fi
}
inline end_ask(k) {
  give_back(into[k]);
  into[k] = LANDING;
  ask[k] = NONE; ticket[k] = 0; claims[k] = false;
  credits++
}
inline start_ask(k, sleeping) {
  credits--;
  lend(k);
  if
  :: sleeping -> claims[k] = true; say_to_producer(CLAIM, k, ticket[k], into[k], false)
  :: else ->
    ticket[k] = next_ticket; next_ticket++;
    if /* Requests say so while the line is long. */
    :: say_to_producer(REQUEST, k, ticket[k], into[k], false)
#if CREDITS == 1 && !defined(WITHOUT_PARKING)
    :: say_to_producer(REQUEST, k, ticket[k], into[k], true)
#endif
    fi
  fi;
  ask[k] = ASKED
}

/* The producer's: that of the hello, too. */
inline forget(k) {
  entry[k] = 0; entry_ticket[k] = 0; entry_number[k] = 0; entry_to[k] = LANDING;
  entry_parked[k] = false; entry_named[k] = false
}
/* An answer of this epoch. */
inline take_answer() {
  k = in.key;
  if
  :: in.ticket != ticket[k] || ask[k] == NONE -> skip /* HERE that crossed UNWANTED. */
  :: else ->
    if
    :: in.what == TENSOR && (ask[k] == ASKED || ask[k] == PARKING) ->
      assert(in.epoch == epoch);                 /* No answer of an older epoch. */
      head = Front(k);
      assert(head != NOTHING);
      assert(in.to == LANDING || in.to == head); /* In memory of whoever gets it. */
      assert(in.number == delivered[k]);         /* Once, and in the order of the key. */
      delivered[k]++;
      accepted[k] = ticket[k];
      say_to_producer(ACCEPTED, k, ticket[k], LANDING, false);
      fetch[head] = DELIVERED;
      end_ask(k)
    :: in.what == PARKED && (ask[k] == ASKED || ask[k] == PARKING) ->
      assert(in.epoch == epoch);
      give_back(into[k]);
      into[k] = LANDING; ask[k] = ASLEEP; claims[k] = false; credits++
    :: in.what == HERE && ask[k] == ASLEEP -> ask[k] = IS_HERE
    :: in.what == GONE && ask[k] == LEAVING -> assert(in.epoch == epoch); end_ask(k)
    :: else -> skip /* What crossed a CANCEL. */
    fi
  fi
}

inline cancel(f) {
  k = KeyOf(f);
  cancels_left--;
  if
  :: (ask[k] == ASKED || ask[k] == PARKING) && into[k] == f ->
    if
    :: up -> say_to_producer(CANCEL, k, ticket[k], LANDING, false)
    :: else
    fi;
    ask[k] = LEAVING;
    fetch[f] = FENCED;
#ifdef WITHOUT_LAST_WORD
    give_back(f);
#endif
  :: else ->
    fetch[f] = ENDED;
    if /* The next of the key takes over what was asked. */
    :: ask[k] == NONE || ask[k] == LEAVING || Front(k) != NOTHING -> skip
    :: else ->
      if
      :: ask[k] == ASKED || ask[k] == PARKING ->
        if :: up -> say_to_producer(CANCEL, k, ticket[k], LANDING, false) :: else fi;
        ask[k] = LEAVING
      :: else ->
        if :: up -> say_to_producer(UNWANTED, k, ticket[k], LANDING, false) :: else fi;
        ask[k] = NONE; ticket[k] = 0; claims[k] = false
      fi
    fi
  fi
}

inline drain() {
  drained = true;
  k = 0;
  do
  :: k < KEYS ->
    give_back(into[k]);
    into[k] = LANDING;
    k++
  :: else -> break
  od
}

inline replay() {
  k = 0;
  do
  :: k < KEYS ->
    if
    :: ask[k] == LEAVING -> say_to_producer(CANCEL, k, ticket[k], LANDING, false)
    :: ask[k] == ASKED || ask[k] == PARKING ->
      lend(k);
#ifndef WITHOUT_REPLAY
      if
      :: claims[k] -> say_to_producer(CLAIM, k, ticket[k], into[k], false)
      :: else -> say_to_producer(REQUEST, k, ticket[k], into[k], false)
      fi;
#endif
      ask[k] = ASKED
    :: ask[k] == ASLEEP || ask[k] == IS_HERE ->
#ifndef WITHOUT_WAITS
      say_to_producer(WAITS, k, ticket[k], LANDING, false);
#endif
      ask[k] = ASLEEP
    :: else
    fi;
    k++
  :: else -> break
  od;
  say_to_producer(REPLAYED, 0, 0, LANDING, false)
}

#define Waits(k) (ask[k] == ASKED && !claims[k])
#define InLine(k) (Front(k) != NOTHING && (ask[k] == NONE || ask[k] == IS_HERE))

active proctype Consumer() {
  Message in;
  byte k, head;
end:
  do
  :: atomic { up && link && 0 < len(to_consumer) ->
      to_consumer ? in;
      if
      :: gap_to_consumer -> link = false
      :: !gap_to_consumer && in.epoch == epoch -> take_answer()
      :: else
      fi;
      clear(in); k = 0; head = 0 }
  :: atomic { up && link && 0 < len(late_to_consumer) ->
      late_to_consumer ? in;
      if
#ifdef WITHOUT_EPOCH_CHECK
      :: take_answer()
#else
      :: in.epoch == epoch -> take_answer()
      :: else /* Dropped and counted. */
#endif
      fi;
      clear(in); k = 0; head = 0 }
  :: atomic { up && link && credits > 0 && InLine(0) ->
      start_ask(0, ask[0] == IS_HERE);
      head = 0 }
  :: atomic { up && link && credits > 0 && InLine(1) ->
      start_ask(1, ask[1] == IS_HERE);
      head = 0 }
#ifndef WITHOUT_PARKING
  /* All credits wait for a Send, and somebody stands in line. */
  :: atomic { up && link && credits == 0 && Waits(0) && InLine(1) ->
      say_to_producer(PARK, 0, ticket[0], LANDING, false); ask[0] = PARKING }
  :: atomic { up && link && credits == 0 && Waits(1) && InLine(0) ->
      say_to_producer(PARK, 1, ticket[1], LANDING, false); ask[1] = PARKING }
#endif
  /* The caller. */
  :: atomic { fetch[0] == UNMADE -> fetch[0] = OPEN }
  :: atomic { fetch[0] != UNMADE && fetch[1] == UNMADE -> fetch[1] = OPEN }
  :: atomic { fetch[2] == UNMADE -> fetch[2] = OPEN }
  :: atomic { cancels_left > 0 && fetch[0] == OPEN ->
      cancel(0); k = 0 }
  :: atomic { cancels_left > 0 && fetch[1] == OPEN ->
      cancel(1); k = 0 }
  :: atomic { cancels_left > 0 && fetch[2] == OPEN ->
      cancel(2); k = 0 }
  /* The link is broken: it drains, and only then is memory given back. */
  :: atomic { up && !link ->
      up = false; drained = false;
#ifdef WITHOUT_DRAIN
      drain(); drained = false; k = 0
#endif
    }
  :: atomic { !up && !link && !drained ->
      drain();
      k = 0;
      if /* A word that was on its way comes long after. */
      :: LATE && len(to_consumer) > 0 && len(late_to_consumer) == 0 ->
        to_consumer ? in; late_to_consumer ! in
      :: true
      fi;
      do :: len(to_consumer) > 0 -> to_consumer ? in :: else -> break od;
      clear(in) }
  :: atomic { !up && drained && failed_hellos_left > 0 -> failed_hellos_left-- }
  :: atomic { !up && drained ->
      if
      :: LATE && len(to_producer) > 0 && len(late_to_producer) == 0 ->
        to_producer ? in; late_to_producer ! in
      :: true
      fi;
      do :: len(to_producer) > 0 -> to_producer ? in :: else -> break od;
      do :: len(to_consumer) > 0 -> to_consumer ? in :: else -> break od; /* Refused by the NIC. */
      clear(in);
      /* The hello: what was accepted, and a new epoch at both ends. */
      epoch++; producer_epoch = epoch; drained = false; up = true; link = true; serves = true;
      gap_to_producer = false; gap_to_consumer = false;
      k = 0;
      do
      :: k < KEYS ->
        entry_named[k] = false;
        if
        :: entry[k] == SENT && entry_ticket[k] == accepted[k] -> forget(k)
        :: else
        fi;
        k++
      :: else -> break
      od;
      replay(); k = 0; head = 0 }
  od
}

/* ---- What the producer does ---- */

/* What it had taken goes back to the rendezvous, into its place. */
inline let_go(k) {
#ifndef WITHOUT_GIVING_BACK
  if
  :: entry[k] == HAS || entry[k] == SENT -> available[k] = available[k] | (1 << entry_number[k])
  :: else
  fi;
#endif
  forget(k)
}
inline write(k) {
  entry[k] = SENT; entry_parked[k] = false;
  say_to_consumer(TENSOR, k, entry_ticket[k], entry_to[k], entry_number[k]);
#ifdef WITHOUT_KEEPING
  forget(k)
#endif
}
/* Nothing is answered in an epoch before it is asked in it. */
#ifdef WITHOUT_ASKED_AGAIN
#define MayAnswer(k) true
#else
#define MayAnswer(k) entry_named[k]
#endif
/* Takes for a waiting entry the earliest tensor, if one is there. */
inline take(k) {
  if
  :: entry[k] == WAITING && MayAnswer(k) && available[k] != 0 ->
    entry_number[k] = (available[k] & 1 -> 0 : 1);
    available[k] = available[k] & ~(1 << entry_number[k]);
    if
    :: entry_parked[k] -> entry[k] = HAS; say_to_consumer(HERE, k, entry_ticket[k], LANDING, 0)
    :: else -> write(k)
    fi
  :: else
  fi
}
/* Whoever asks anew under another ticket wants nothing of what the key had before. */
inline make_entry(k, parked) {
  let_go(k);
  entry[k] = WAITING; entry_ticket[k] = word.ticket; entry_to[k] = word.to;
  entry_parked[k] = parked; entry_named[k] = true
}

inline take_word() {
  assert(word.epoch == producer_epoch); /* No question of an older epoch. */
  k = word.key;
  same = entry[k] != 0 && entry_ticket[k] == word.ticket;
  if
  :: word.what == REQUEST || word.what == CLAIM ->
    if
    :: !same -> make_entry(k, false)
    :: else -> entry_named[k] = true; entry_to[k] = word.to; entry_parked[k] = false
    fi;
    if
    :: entry[k] == HAS || entry[k] == SENT -> write(k)
    :: else -> take(k)
    fi;
    if
    :: word.may_park && entry[k] == WAITING ->
      entry_parked[k] = true; say_to_consumer(PARKED, k, word.ticket, LANDING, 0)
    :: else
    fi
  :: word.what == PARK ->
    if
    :: same && entry[k] == WAITING ->
      entry_parked[k] = true; say_to_consumer(PARKED, k, word.ticket, LANDING, 0)
    :: else /* The outcome is on its way. */
    fi
  :: word.what == WAITS ->
    if
    :: !same -> make_entry(k, true); take(k)
    :: else ->
      entry_named[k] = true; entry_parked[k] = true;
      if
      :: entry[k] == SENT || entry[k] == HAS ->
        entry[k] = HAS;
#ifndef WITHOUT_HERE_AGAIN
        say_to_consumer(HERE, k, word.ticket, LANDING, 0)
#endif
      :: else -> take(k)
      fi
    fi
  :: word.what == CANCEL ->
    if :: same -> let_go(k) :: else fi;
    say_to_consumer(GONE, k, word.ticket, LANDING, 0)
  :: word.what == UNWANTED -> if :: same -> let_go(k) :: else fi
  :: word.what == ACCEPTED -> if :: same && entry[k] == SENT -> forget(k) :: else fi
  :: word.what == REPLAYED ->
#ifndef WITHOUT_REPLAYED
    k = 0;
    do
    :: k < KEYS -> if :: entry[k] != 0 && !entry_named[k] -> let_go(k) :: else fi; k++
    :: else -> break
    od
#else
    skip
#endif
  fi
}

inline send_tensor(k) {
  available[k] = available[k] | (1 << sent[k]); sent[k]++;
  take(k)
}

#define clear_word() clear(word); k = 0; same = false

active proctype Producer() {
  Message word;
  byte k;
  bool same;
end:
  do
  :: atomic { serves && 0 < len(to_producer) ->
      to_producer ? word;
      if
      :: gap_to_producer -> link = false
      :: !gap_to_producer && word.epoch == producer_epoch -> take_word()
      :: else
      fi;
      clear_word() }
  :: atomic { serves && 0 < len(late_to_producer) ->
      late_to_producer ? word;
      if
#ifdef WITHOUT_EPOCH_CHECK
      :: take_word()
#else
      :: word.epoch == producer_epoch -> take_word()
      :: else
#endif
      fi;
      clear_word() }
  :: atomic { serves && !link -> serves = false }
  /* Sends happen whatever the link does; what they bring is written while it works. */
  :: atomic { serves && sent[1] < SendsOf(1) -> send_tensor(1); clear_word() }
  :: atomic { serves && sent[0] < SendsOf(0) && Over(2) -> send_tensor(0); clear_word() }
  od
}

/* ---- The network ---- */

/* A tensor's bytes land when its packets arrive, before anybody polls. Between the break and
 * the drain they land too; behind the drain the NIC refuses them. */
active proctype Network() {
end:
  do
  :: atomic { breaks_left > 0 && link -> breaks_left--; link = false }
#if LOSSES > 0
  :: atomic { losses_left > 0 && link && 0 < len(to_producer) ->
      losses_left--; gap_to_producer = true; to_producer ? _, _, _, _, _, _, _ }
  :: atomic { losses_left > 0 && link && 0 < len(to_consumer) ->
      losses_left--; gap_to_consumer = true; to_consumer ? _, _, _, _, _, _, _ }
#endif
  od
}

#define LateByte(f) (to_consumer ?? [TENSOR, eval(epoch), _, _, f, _, _] && !drained && !lent[f])

/* In every state: whatever may still land has memory that is lent. */
active proctype Memory() {
end:
  do
  :: atomic { LateByte(0) || LateByte(2) -> assert(false) }
  od
}

/* Time goes on, so that a run never just stops. */
active proctype Clock() {
end:
  do
  :: !AllOver -> skip
  od
}
/* Whoever hears nothing asks, and finds out what got lost. */
active proctype Watch() {
end:
#ifndef WITHOUT_WATCH
  do
  :: atomic { link && (gap_to_producer || gap_to_consumer) -> link = false }
  od
#endif
  skip
}

/* At rest nothing is lent, held or lost. */
#define InRendezvous(k) ((available[k] & 1) + (available[k] >> 1))
#define AtRest(k) (entry[k] == 0 && ask[k] == NONE && InRendezvous(k) + delivered[k] == sent[k])
active proctype Judge() {
end:
  timeout -> assert(AllOver && AtRest(0) && AtRest(1) && credits == CREDITS);
  assert(!lent[0] && !lent[1] && !lent[2])
}

/* Nothing waits for ever where peers and time go on. */
ltl ends { <> AllOver }
