/*
 * Which version a fleet serves: a log with compare-and-append, a lease that moves between two leaders,
 * two members with permits, owners of two terms. docs/MODELS.md says what is covered.
 *
 * A member's question is all that it says, and the answer all that it hears: entries, HOLD, a permit. One
 * is out at most, may be lost, and may take any time. A leader reads what a question says when it arrives:
 * that stays true until the member's life ends, and then it is as if the question had come before. With
 * LETTING_GO the leader may prepare one version and then another, and a member lets go of its stage for that:
 * then what it said before is true no more. Every
 * timer counts ticks, and one step is a tick for all of them: clocks run alike. Version 1 is active at the start.
 *
 * With SEALING, owners publish versions 2 and 3, nothing is activated, and there is no time, since no rule
 * of sealing knows any; without, both are sealed from the start, and are activated. The two halves meet in
 * the log alone. WITHOUT_... leaves out one rule;
 * then something has to be found.
 */
#ifndef SEALING
#define SEALING 0
#endif
#ifndef BARRIER
#define BARRIER 1
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef REIGNS
#define REIGNS 2
#endif
#ifndef ENTRIES
#define ENTRIES 5
#endif
#ifndef NEWEST
#define NEWEST 3
#endif
#ifndef PERMIT
#define PERMIT 1
#endif
#ifndef LEASE
#define LEASE 1
#endif

#ifndef MEMBERS
#define MEMBERS 2
#endif
#ifndef DROPS
#define DROPS 1
#endif
#ifndef MEMBERS_DIE
#define MEMBERS_DIE 1
#endif
#ifndef LETTING_GO
#define LETTING_GO 0
#endif
#ifndef LOSSES
#define LOSSES 1
#endif
#define LEADERS 2
#define MOST 2

/* ---- The log. An entry is its kind and an argument ---- */
#define OWNERS_ 16    /* The term. */
#define MEMBERS_ 32   /* Two bits each: 0 no member, 1 its first life, 2 its second. */
#define SEALED_ 48    /* The version, and 4 times the term of those who were ready. */
#define ACTIVE_ 64
#define DROPPED_ 80
#define Kind(e) ((e) & 240)
#define Version(e) ((e) & 3)
#define Term(e) (((e) >> 2) & 3)
#define Life(set, m) (((set) >> (2 * (m))) & 3)

byte entry[ENTRIES];
byte length = 1; /* The first entry stands for what was before. */
byte reign;      /* Of the lease: how often it was taken. */
byte lease;      /* Ticks until somebody else may take it. */
byte since = PERMIT; /* Ticks since the last ACTIVE, up to PERMIT. */

/* ---- A leader ---- */
byte reigns[LEADERS];   /* Its reign; 0: it leads nothing. */
byte lease_of[LEADERS]; /* What it believes is left of the lease. */
byte asked[LEADERS];    /* For the lease: ticks since, and 1; 0: it has not. */
byte granted[LEADERS];  /* The decider's answer: a reign, on its way. */
byte known[LEADERS];    /* So much of the log. */
byte phase[LEADERS];
byte act[LEADERS];      /* What it activates. */
byte voted[LEADERS];    /* Bits: members that have it whole; */
byte held[LEADERS];     /* members that hold for it. */
byte quiet[LEADERS];    /* Ticks until the permits of former leaders are over. */
byte given[4];          /* By leader and member: ticks until its permits are over. */
byte want[LEADERS];     /* An append under way: the entry, 0 none; */
byte want_at[LEADERS];
byte want_reign[LEADERS];
bool want_done[LEADERS]; /* The decider has answered. */
byte ready[LEADERS];     /* Bits: owners that are ready for version `sealing`. */
byte sealing[LEADERS];
#define IDLE 0
#define PREPARING 1
#define HOLDING 2

/* ---- A member ---- */
byte life[MOST];
byte applied[MOST] = 1;
byte serves[MOST] = 1;
byte part[MOST];   /* A stage that is not whole. */
byte staged[MOST]; /* A whole one. */
byte holds[MOST];
byte permit[MOST]; /* Ticks. */
byte age[MOST];    /* Of its question: ticks, and 1; 0: none is out. */
/* The answer, while it travels: up to which entry, which version the permit is for, what to hold for. */
byte answer[MOST];
byte answer_permit[MOST];
byte answer_hold[MOST];
byte answer_life[MOST];
#if LETTING_GO
byte answer_prepare[MOST]; /* What the leader activates. */
byte said[4];              /* By leader and member: the stage of the last question. */
#endif

/* ---- An owner ---- */
byte owner_life[2];  /* 0 and 1. */
byte owner_term[2] = 1; /* What it believes; 0: it has declared itself anew. */
/* All READYs that it has said. Any may come at any time. Bits: 2 * term + version - 2. */
byte was_ready[2];

byte crashes_left = CRASHES;
#ifdef WITHOUT_SETTLING
bool gave_up;
#endif
#ifdef WITHOUT_ECHO
byte late_permit[MOST]; /* An answer to a question that was given up. */
byte late_answer[MOST];
#endif

/* ---- What a prefix of the log says ---- */
hidden byte s_term; hidden byte s_members; hidden byte s_sealed; hidden byte s_dropped; hidden byte s_active;
hidden byte i; hidden byte n; hidden byte v; hidden byte ok;

inline look(prefix) {
  s_term = 1; s_members = (MEMBERS == 2 -> 5 : 1); s_active = 1; s_dropped = 0;
  s_sealed = (SEALING -> 2 : (NEWEST == 2 -> 6 : 14));
  i = 1;
  do
  :: i < prefix ->
    if
    :: Kind(entry[i]) == OWNERS_ -> s_term = entry[i] & 15
    :: Kind(entry[i]) == MEMBERS_ -> s_members = entry[i] & 15
    :: Kind(entry[i]) == SEALED_ -> s_sealed = s_sealed | (1 << Version(entry[i]))
    :: Kind(entry[i]) == ACTIVE_ -> s_active = Version(entry[i])
    :: Kind(entry[i]) == DROPPED_ -> s_dropped = s_dropped | (1 << Version(entry[i]))
    fi;
    i++
  :: else -> break
  od;
  i = 0
}
#define Bit(set, x) (((set) >> (x)) & 1)
/* Sealed, and neither active, dropped, nor behind what is active. */
#define Open_(x) (x > s_active && Bit(s_sealed, x) && !Bit(s_dropped, x))

/* ---- The decider ---- */

#define Serves(m) (permit[m] > 0)

/* What is chosen stays, so it is judged when it is chosen. */
#define Stale(o, e) (!Bit(was_ready[o], 2 + Version(e)) && Bit(was_ready[o], Version(e)))
inline judge_entry(e) {
  look(length);
  if
  :: Kind(e) == SEALED_ ->
    if
    :: Bit(s_sealed, Version(e)) || Bit(s_dropped, Version(e)) -> printf("BROKEN OneFate\n"); assert(false)
    :: Term(e) != s_term || (s_term == 2 && ((Stale(0, e) || Stale(1, e)))) -> printf("BROKEN StaleOwnerFenced\n"); assert(false)
    :: !Bit(was_ready[0], 2 * s_term + Version(e) - 2) || !Bit(was_ready[1], 2 * s_term + Version(e) - 2) ->
      printf("BROKEN WholeSeal\n"); assert(false)
    :: else
    fi
  :: Kind(e) == DROPPED_ ->
    if
    :: s_active == Version(e) || Bit(s_dropped, Version(e)) -> printf("BROKEN OneFate\n"); assert(false)
    :: else
    fi
  :: Kind(e) == ACTIVE_ ->
    if
    :: !Bit(s_sealed, Version(e)) || Bit(s_dropped, Version(e)) || Version(e) <= s_active ->
      printf("BROKEN OneFate\n"); assert(false)
#if BARRIER
    :: Serves(0) || Serves(1) -> printf("BROKEN NoMixUnderBarrier\n"); assert(false)
#endif
#if LETTING_GO
    :: (Life(s_members, 0) == life[0] + 1 && staged[0] != Version(e)) ||
       (Life(s_members, 1) == life[1] + 1 && staged[1] != Version(e)) -> printf("BROKEN AllVoted\n"); assert(false)
#endif
    :: else
    fi
  :: else
  fi
}

inline decide(l) {
  ok = length < ENTRIES;
#ifndef WITHOUT_LENGTH
  ok = ok && want_at[l] == length;
#endif
#ifndef WITHOUT_FENCE
  ok = ok && want_reign[l] == reign;
#endif
  if
  :: ok ->
    judge_entry(want[l]);
    entry[length] = want[l];
    length++;
    if :: Kind(want[l]) == ACTIVE_ -> since = 0 :: else fi
  :: else
  fi;
  want_done[l] = true;
  ok = 0
}

/* ---- What a leader does ---- */

#define Leads(l) (reigns[l] != 0)
#define Free(l) (Leads(l) && want[l] == 0)

inline ask(l, e) {
  want[l] = e; want_at[l] = known[l]; want_reign[l] = reigns[l]; want_done[l] = false
}
inline drop_want(l) { want[l] = 0; want_at[l] = 0; want_reign[l] = 0; want_done[l] = false }
inline rest(l) { phase[l] = IDLE; act[l] = 0; voted[l] = 0; held[l] = 0 }

/* It has read the log as it is. */
inline learn(l) {
  n = known[l];
  known[l] = length;
  look(length);
  if
  :: phase[l] != IDLE && !Open_(act[l]) -> rest(l)
  :: else
  fi;
  v = 0;
  do /* Who is another or none has said nothing. */
  :: n < length ->
    if
    :: Kind(entry[n]) == MEMBERS_ -> voted[l] = 0; held[l] = 0
    :: Kind(entry[n]) == OWNERS_ -> ready[l] = 0; sealing[l] = 0
    :: else
    fi;
    n++
  :: else -> break
  od;
  n = 0
}

inline lose_office(l) {
  reigns[l] = 0; lease_of[l] = 0; known[l] = 0; quiet[l] = 0; given[2 * l] = 0; given[2 * l + 1] = 0;
  ready[l] = 0; sealing[l] = 0; rest(l)
}

inline hear_grant(l) {
#ifdef WITHOUT_LEASE_FROM_QUESTION
  lease_of[l] = LEASE;
#else
  lease_of[l] = (asked[l] - 1 < LEASE -> LEASE - (asked[l] - 1) : 0);
#endif
  if
  :: reigns[l] != granted[l] ->
    lose_office(l);
    reigns[l] = granted[l];
#ifdef WITHOUT_LEASE_FROM_QUESTION
    lease_of[l] = LEASE;
#else
    lease_of[l] = (asked[l] - 1 < LEASE -> LEASE - (asked[l] - 1) : 0);
#endif
#ifndef WITHOUT_FORMER_PERMITS
    quiet[l] = PERMIT;
#endif
#ifdef WITHOUT_READING
    known[l] = 1;
#else
    known[l] = length;
#endif
  :: else
  fi;
  granted[l] = 0; asked[l] = 0
}

/* An ACTIVE that may have been chosen, or may be yet. */
#ifdef WITHOUT_STOPPING
#define MayPermit(l) true
#elif defined(WITHOUT_SETTLING)
#define MayPermit(l) (Kind(want[l]) != ACTIVE_ || gave_up)
#else
#define MayPermit(l) (Kind(want[l]) != ACTIVE_)
#endif
#if defined(WITHOUT_LEASE) || LEASE == 0
#define Rules(l) true
#else
#define Rules(l) (lease_of[l] > 0)
#endif

#if LETTING_GO
inline clear_answer(m) { answer[m] = 0; answer_permit[m] = 0; answer_hold[m] = 0; answer_life[m] = 0; answer_prepare[m] = 0 }
#ifdef WITHOUT_FRESH_VOTES
/* What was said before the activation counts, too. */
#define Begun(l) ((said[2 * l] == act[l]) | ((said[2 * l + 1] == act[l]) << 1))
#else
#define Begun(l) 0
#endif
#else
inline clear_answer(m) { answer[m] = 0; answer_permit[m] = 0; answer_hold[m] = 0; answer_life[m] = 0 }
#define Begun(l) 0
#endif

#ifdef WITHOUT_STAGING
#define Says(m) (staged[m] != 0 -> staged[m] : part[m])
#else
#define Says(m) staged[m]
#endif

inline hear_question(l, m) {
  look(known[l]);
#ifdef WITHOUT_JOINING
  ok = 1;
#else
  ok = Life(s_members, m) == life[m] + 1;
#endif
  if
  :: ok && phase[l] != IDLE && Says(m) == act[l] -> voted[l] = voted[l] | (1 << m)
  :: else
  fi;
  if
  :: ok && phase[l] == HOLDING && holds[m] == act[l] -> held[l] = held[l] | (1 << m)
  :: else
  fi;
  if /* A held member whose leader is gone: this one begins again. */
  :: ok && phase[l] == IDLE && holds[m] != 0 && Open_(holds[m]) -> phase[l] = PREPARING; act[l] = holds[m]
  :: else
  fi;
  answer[m] = known[l];
  answer_life[m] = life[m];
#if LETTING_GO
  said[2 * l + m] = Says(m);
  answer_prepare[m] = act[l];
#endif
  if
  :: phase[l] == HOLDING -> answer_hold[m] = act[l]
  :: else
  fi;
  if
#ifdef WITHOUT_APPLYING
  :: ok && Rules(l) && MayPermit(l) && serves[m] != 0 && holds[m] == 0 ->
    answer_permit[m] = serves[m]; given[2 * l + m] = PERMIT
#else
  :: ok && Rules(l) && MayPermit(l) && serves[m] == s_active && holds[m] == 0 ->
    answer_permit[m] = s_active; given[2 * l + m] = PERMIT
#endif
  :: else
  fi;
  if
  :: !ok && want[l] == 0 -> ask(l, MEMBERS_ | (s_members & ~(3 << (2 * m))) | ((life[m] + 1) << (2 * m)))
  :: else
  fi;
  ok = 0; v = 0
}

#ifdef WITHOUT_PUT_OUT_WAIT
#define Shut(l, m) (Life(s_members, m) == 0 || Bit(held[l], m) || given[2 * l + m] == 0)
#else
#define Shut(l, m) (Bit(held[l], m) || given[2 * l + m] == 0)
#endif
#ifdef WITHOUT_HOLD
#define AllShut(l) true
#else
/* Every member holds; and whoever may have a permit besides has none any more. */
#define AllShut(l) (quiet[l] == 0 && Shut(l, 0) && Shut(l, 1) \
                    && (Life(s_members, 0) == 0 || Bit(held[l], 0)) && (Life(s_members, 1) == 0 || Bit(held[l], 1)))
#endif
#define AllVoted(l) ((Life(s_members, 0) == 0 || Bit(voted[l], 0)) && (Life(s_members, 1) == 0 || Bit(voted[l], 1)) \
                     && s_members != 0)

inline lead(l) {
  look(known[l]);
  if
#if !SEALING
  :: phase[l] == IDLE && Open_(2) -> phase[l] = PREPARING; act[l] = 2; voted[l] = Begun(l)
#if NEWEST == 3
  :: phase[l] == IDLE && Open_(3) -> phase[l] = PREPARING; act[l] = 3; voted[l] = Begun(l)
#endif
  :: phase[l] == PREPARING && AllVoted(l) && BARRIER -> phase[l] = HOLDING
  :: phase[l] == PREPARING && AllVoted(l) && !BARRIER -> ask(l, ACTIVE_ | act[l])
  :: phase[l] == HOLDING && AllVoted(l) && AllShut(l) -> ask(l, ACTIVE_ | act[l])
  :: DROPS && phase[l] != IDLE -> ask(l, DROPPED_ | act[l])
  :: phase[l] != IDLE && Life(s_members, 0) != 0 && Life(s_members, 1) != 0 && !Bit(voted[l] & (BARRIER -> held[l] : 3), 0) ->
    ask(l, MEMBERS_ | (s_members & 12))
  :: phase[l] != IDLE && Life(s_members, 0) != 0 && Life(s_members, 1) != 0 && !Bit(voted[l] & (BARRIER -> held[l] : 3), 1) ->
    ask(l, MEMBERS_ | (s_members & 3))
#else
#ifdef WITHOUT_WHOLE
  :: sealing[l] != 0 && ready[l] != 0 && !Bit(s_sealed | s_dropped, sealing[l]) ->
#else
  :: sealing[l] != 0 && ready[l] == 3 && !Bit(s_sealed | s_dropped, sealing[l]) ->
#endif
    ask(l, SEALED_ | sealing[l] | (s_term << 2))
  :: sealing[l] != 0 && !Bit(s_sealed | s_dropped, sealing[l]) -> ask(l, DROPPED_ | sealing[l])
  /* An owner has come anew. */
  :: s_term == 1 && owner_life[0] + owner_life[1] > 0 -> ask(l, OWNERS_ | 2)
#endif
  :: else
  fi;
  v = 0
}

#ifdef WITHOUT_TERM
#define Said(o, version) (Bit(was_ready[o], version) || Bit(was_ready[o], 2 + version))
#else
#define Said(o, version) Bit(was_ready[o], 2 * s_term + version - 2)
#endif
inline hear_ready(l, o) {
  look(known[l]);
  if
  :: Said(o, 2) -> v = 2
  :: Said(o, 3) -> v = 3
  :: else -> v = 0
  fi;
  if
  :: v != 0 && sealing[l] != v -> sealing[l] = v; ready[l] = 1 << o
  :: v != 0 && sealing[l] == v -> ready[l] = ready[l] | (1 << o)
  :: else
  fi;
  v = 0
}

inline leader_dies(l) {
  crashes_left--;
  lose_office(l);
  asked[l] = 0; granted[l] = 0
}

active [LEADERS] proctype Leader() {
  byte l = _pid;
  do
#if SEALING || LEASE == 0 /* A lease that ends with its holder. */
  :: atomic { reign < REIGNS && (reign > 0 || l == 0) && (SEALING || (reigns[0] == 0 && reigns[1] == 0)) ->
      lose_office(l);
      reign++; reigns[l] = reign; known[l] = length;
#ifndef WITHOUT_FORMER_PERMITS
      quiet[l] = (SEALING -> 0 : PERMIT)
#endif
    }
#else
  /* The two are alike, so leader 0 has the first reign. */
  :: atomic { asked[l] == 0 && (reign < REIGNS || reigns[l] == reign) && (reign > 0 || l == 0) && lease_of[l] < LEASE -> asked[l] = 1 }
  :: atomic { asked[l] != 0 && granted[l] == 0 && (lease == 0 || reigns[l] == reign) && (reigns[l] == reign && reign != 0 || reign < REIGNS) ->
      if
      :: reigns[l] == reign && reign != 0 -> skip
      :: else -> reign++
      fi;
      lease = LEASE; granted[l] = reign }
  :: atomic { granted[l] != 0 -> hear_grant(l) }
  :: atomic { asked[l] != 0 && granted[l] == 0 && asked[l] > 1 -> asked[l] = 0 } /* Lost. */
#endif
  :: atomic { want[l] != 0 && !want_done[l] -> decide(l) }
  :: atomic { want[l] != 0 && want_done[l] ->
      if
      :: want_reign[l] == reigns[l] && Leads(l) -> drop_want(l); learn(l)
      :: else -> drop_want(l) /* It was for somebody who died. */
      fi }
  /* The answer is lost, and it asks again. */
  :: atomic { want[l] != 0 && want_done[l] -> want_done[l] = false }
#ifdef WITHOUT_SETTLING
  /* It gives up waiting, reads, and goes on as if its append were lost. */
  :: atomic { want[l] != 0 && !want_done[l] && Leads(l) && Kind(want[l]) == ACTIVE_ && !gave_up -> gave_up = true }
#endif
  :: atomic { Free(l) && known[l] > 0 -> lead(l) }
#if SEALING
  :: atomic { Leads(l) && was_ready[0] != 0 -> hear_ready(l, 0) }
  :: atomic { Leads(l) && was_ready[1] != 0 -> hear_ready(l, 1) }
#else
  :: atomic { Leads(l) && age[0] != 0 && answer[0] == 0 -> hear_question(l, 0) }
  :: atomic { Leads(l) && age[1] != 0 && answer[1] == 0 -> hear_question(l, 1) }
#endif
  :: atomic { crashes_left > 0 && Leads(l) -> leader_dies(l) }
  od
}

/* ---- What a member does ---- */

inline apply(m) {
  look(applied[m]);
  if :: s_active != serves[m] || Life(s_members, m) != life[m] + 1 -> permit[m] = 0 :: else fi;
  if :: holds[m] != 0 && !Open_(holds[m]) -> holds[m] = 0 :: else fi;
  if :: part[m] != 0 && !Open_(part[m]) && part[m] != s_active -> part[m] = 0 :: else fi;
  if :: staged[m] != 0 && !Open_(staged[m]) && staged[m] != s_active -> staged[m] = 0 :: else fi
}

#ifdef WITHOUT_STAYING_HELD
#define MayServe(m) true
#else
#define MayServe(m) (holds[m] == 0)
#endif
#ifdef WITHOUT_APPLYING
#define HasApplied(m, upto) true
#else
#define HasApplied(m, upto) (upto == applied[m])
#endif
inline take_permit(m, version, upto) {
  if
  :: version != 0 && version == serves[m] && MayServe(m) && HasApplied(m, upto) ->
#ifdef WITHOUT_FROM_QUESTION
    permit[m] = PERMIT
#else
    permit[m] = (age[m] - 1 < PERMIT -> PERMIT - (age[m] - 1) : 0)
#endif
  :: else
  fi
}

inline hear_answer(m) {
  if
  :: answer_life[m] == life[m] ->
    if
#ifndef WITHOUT_APPLYING
    :: answer[m] > applied[m] -> applied[m] = answer[m]; apply(m)
#endif
    :: else
    fi;
    look(applied[m]);
#if LETTING_GO
    if
    :: answer_prepare[m] != 0 && Open_(answer_prepare[m]) && holds[m] == 0 && staged[m] != 0 && staged[m] != answer_prepare[m] ->
      staged[m] = answer_prepare[m]
    :: else
    fi;
#endif
    if
    :: answer_hold[m] != 0 && Open_(answer_hold[m]) && staged[m] == answer_hold[m] ->
      holds[m] = answer_hold[m]; permit[m] = 0
    :: else
    fi;
    take_permit(m, answer_permit[m], answer[m])
  :: else
  fi;
  clear_answer(m);
  age[m] = 0
}

#if !SEALING
active [MEMBERS] proctype Member() {
  byte m = _pid - LEADERS;
  do
  :: atomic { age[m] == 0 && answer[m] == 0 -> age[m] = 1 }
  :: atomic { answer[m] != 0 -> hear_answer(m) }
#if LOSSES
  :: atomic { answer[m] != 0 ->
#ifdef WITHOUT_ECHO
      late_answer[m] = answer[m]; late_permit[m] = answer_permit[m];
#endif
      clear_answer(m); age[m] = 0 }
#endif
#ifdef WITHOUT_ECHO
  :: atomic { age[m] != 0 && late_answer[m] != 0 ->
      take_permit(m, late_permit[m], late_answer[m]); late_answer[m] = 0; late_permit[m] = 0 }
#endif
  :: atomic { applied[m] > 0 && part[m] == 0 && staged[m] == 0 ->
      look(applied[m]);
      if
      :: Open_(2) -> part[m] = 2
      :: Open_(3) -> part[m] = 3
      :: serves[m] != s_active -> part[m] = s_active
      :: else
      fi;
#ifndef WITHOUT_STAGING
      staged[m] = part[m]; part[m] = 0
#endif
    }
#ifdef WITHOUT_STAGING
  :: atomic { part[m] != 0 -> staged[m] = part[m]; part[m] = 0 }
#endif
  :: atomic { applied[m] > 0 && (staged[m] != 0 || part[m] != 0) ->
      look(applied[m]);
      if
#ifdef WITHOUT_STAGING
      :: serves[m] != s_active && part[m] == s_active -> printf("BROKEN StagedBeforeTouched\n"); assert(false)
#endif
      :: serves[m] != s_active && staged[m] == s_active -> serves[m] = s_active; staged[m] = 0; permit[m] = 0
      :: else
      fi }
#ifdef WITHOUT_CHOOSING
  /* It switches when it is asked to hold. */
  :: atomic { holds[m] != 0 && staged[m] == holds[m] ->
      serves[m] = staged[m]; staged[m] = 0; holds[m] = 0; permit[m] = PERMIT }
#endif
  :: atomic { MEMBERS_DIE && crashes_left > 0 && life[m] == 0 ->
      crashes_left--; life[m] = 1;
#ifndef WITHOUT_COMING_EMPTY
      serves[m] = 0; permit[m] = 0;
#endif
      applied[m] = 0; part[m] = 0; staged[m] = 0; holds[m] = 0 }
  od
}
#else
/* ---- What an owner does ---- */
active [2] proctype Owner() {
  byte o = _pid - LEADERS;
  do
  /* It has applied the log as it is; a new life is an owner from the next term on. */
  :: atomic { look(length);
      if :: owner_life[o] == 0 || s_term == 2 -> owner_term[o] = s_term :: else fi }
  :: atomic { owner_term[o] != 0 ->
      if
      :: v = 2
#if NEWEST == 3
      :: v = 3
#endif
      fi;
      was_ready[o] = was_ready[o] | (1 << (2 * owner_term[o] + v - 2));
      v = 0 }
  :: atomic { crashes_left > 0 && owner_life[o] == 0 -> crashes_left--; owner_life[o] = 1; owner_term[o] = 0 }
  od
}
#endif

#define Down(x) if :: x > 0 -> x-- :: else fi
#define Up(x, most) if :: x > 0 && x <= most -> x++ :: else fi

active proctype Time() {
  do
  :: atomic { (lease + lease_of[0] + lease_of[1] + permit[0] + permit[1] + given[0] + given[1] + given[2] + given[3]
              + quiet[0] + quiet[1] + asked[0] + asked[1] + age[0] + age[1] > 0) ->
      Down(lease); Down(lease_of[0]); Down(lease_of[1]); Down(permit[0]); Down(permit[1]);
      Down(given[0]); Down(given[1]); Down(given[2]); Down(given[3]); Down(quiet[0]); Down(quiet[1]);
      Up(asked[0], LEASE); Up(asked[1], LEASE); Up(age[0], PERMIT); Up(age[1], PERMIT);
      if :: since < PERMIT -> since++ :: else fi }
  od
}


active proctype Judge() {
  do
#if BARRIER
  :: atomic { Serves(0) && Serves(1) && serves[0] != serves[1] -> printf("BROKEN NoMixUnderBarrier\n"); assert(false) }
#endif
  :: atomic { (Serves(0) && (serves[0] == 0 || applied[0] == 0)) || (Serves(1) && (serves[1] == 0 || applied[1] == 0)) ->
      printf("BROKEN ComesBackEmpty\n"); assert(false) }
  :: atomic { since >= PERMIT && (Serves(0) || Serves(1)) ->
      look(length);
      if
      :: (Serves(0) && serves[0] < s_active) || (Serves(1) && serves[1] < s_active) ->
        printf("BROKEN BoundedMix\n"); assert(false)
      :: (Serves(0) && serves[0] > s_active) || (Serves(1) && serves[1] > s_active) ->
        printf("BROKEN OneOrder\n"); assert(false)
      :: else
      fi }
  od
}
