; How a kernel runs its grid on threads: `tilecore_launch` stands in for TVMBackendParallelLaunch once
; `tilecore_pool` was told where the process keeps its pool (tilecore/runtime/threads.py). Threads take
; pieces of the grid until none is left, first those of their own part, which lies in their caches if
; they had it in the launch before, so that nobody waits for the slowest part. They are those of an
; OpenMP runtime that the process has already (torch's), or the pool's own. Of these none is waited for
; that has not begun: where other threads have the cores, the caller runs the whole grid. OpenMP waits
; for all of its threads; where that took long, some launches go to the own ones.

; GOMP_parallel (null: own threads), who says how many cores are used now (null: all), how many there
; are at most, under which key each thread has what its next launch is, omp_get_thread_num; of the own
; threads: masks of the CPUs that they stay on, how many (0: they go anywhere), what counts the launches,
; how many sleep, how many there are, how many have a number; whether the own ones and those of OpenMP
; are left out, launches.
; No thread_local of the kernel's own: the loader (glibc 2.36) ends the process where a library with
; several such dependencies meets the end of its table, which holds as many libraries as 64 kernels.
%pool = type { ptr, ptr, i32, i32, ptr, ptr, i32, i32, i32, i32, i32, %rest, %rest, [4 x %job] }
; how many launches threads are left out of, and of how many after the next one that waits for them
%rest = type { i32, i32 }
; function, its data, number of parts, most pieces of each, failure, how many pieces there are, its
; error; of the own threads: whether it is open (the sign) and how many are inside, whether a caller has
; it, how many may help; when OpenMP's first thread had done its part, the next piece of each part
%job = type { ptr, ptr, i32, i32, i32, i32, ptr, i32, i32, i32, i64, [128 x i32] }
%env = type { ptr, i32 } ; TVMParallelGroupEnv: no barrier, number of pieces

@pool = internal global ptr null
@name = internal constant [9 x i8] c"tilecore\00"

declare void @TVMFFIErrorMoveFromRaised(ptr)
declare void @TVMFFIErrorSetRaised(ptr)
declare i32 @TVMFFIObjectDecRef(ptr)
declare ptr @pthread_getspecific(i32)
declare i32 @pthread_setspecific(i32, ptr)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i32 @sched_yield()
declare i64 @syscall(i64, ...)
declare i64 @llvm.readcyclecounter()
declare i32 @llvm.umin.i32(i32, i32)
declare i32 @llvm.umax.i32(i32, i32)

define void @tilecore_pool(ptr %pool) {
  store ptr %pool, ptr @pool
  ret void
}

; What the next launch of this thread is: how many threads it is worth (0: all there are), and how many
; iterations it has.
define i32 @tilecore_team(i32 %threads, i32 %iterations) {
entry:
  %pool = load ptr, ptr @pool
  %is_none = icmp eq ptr %pool, null
  br i1 %is_none, label %end, label %told

told:
  %key.at = getelementptr %pool, ptr %pool, i32 0, i32 3
  %key = load i32, ptr %key.at
  %low = zext i32 %threads to i64
  %long = zext i32 %iterations to i64
  %high = shl i64 %long, 32
  %both = or i64 %high, %low
  %worth = inttoptr i64 %both to ptr
  %kept = call i32 @pthread_setspecific(i32 %key, ptr %worth)
  br label %end

end:
  ret i32 0
}

; How many threads a pool has for the caller.
define internal i32 @cores(ptr %pool) {
entry:
  %cores.at = getelementptr %pool, ptr %pool, i32 0, i32 2
  %cores = load i32, ptr %cores.at
  %limit.at = getelementptr %pool, ptr %pool, i32 0, i32 1
  %limit = load ptr, ptr %limit.at
  %is_all = icmp eq ptr %limit, null
  br i1 %is_all, label %all, label %asked

all:
  ret i32 %cores

asked:
  %now = call i32 %limit()
  %is_few = icmp slt i32 %now, %cores
  %found = select i1 %is_few, i32 %now, i32 %cores
  ret i32 %found
}

; How many threads run a grid; many, as long as nobody told.
define i32 @tilecore_threads() {
entry:
  %pool = load ptr, ptr @pool
  %is_none = icmp eq ptr %pool, null
  br i1 %is_none, label %many, label %some

many:
  ret i32 65536

some:
  %cores = call i32 @cores(ptr %pool)
  ret i32 %cores
}

; Whether a grid for which a team of one is asked runs on one thread.
define i32 @tilecore_alone() {
entry:
  %pool = load ptr, ptr @pool
  %is_none = icmp eq ptr %pool, null
  br i1 %is_none, label %many, label %some

many:
  ret i32 0

some:
  %cores = call i32 @cores(ptr %pool)
  %is_one = icmp eq i32 %cores, 1
  %alone = zext i1 %is_one to i32
  ret i32 %alone
}

; Run pieces until none is left, those of the part with the thread's number first.
define internal void @work(ptr %job, i32 %thread) {
entry:
  %env = alloca %env
  %raised = alloca ptr
  %run = load ptr, ptr %job
  %data.at = getelementptr %job, ptr %job, i32 0, i32 1
  %data = load ptr, ptr %data.at
  %parts.at = getelementptr %job, ptr %job, i32 0, i32 2
  %parts = load i32, ptr %parts.at
  %each.at = getelementptr %job, ptr %job, i32 0, i32 3
  %each = load i32, ptr %each.at
  %failed.at = getelementptr %job, ptr %job, i32 0, i32 4
  %error.at = getelementptr %job, ptr %job, i32 0, i32 6
  %count.at = getelementptr %job, ptr %job, i32 0, i32 5
  %count = load i32, ptr %count.at
  store ptr null, ptr %env
  %pieces.at = getelementptr %env, ptr %env, i32 0, i32 1
  store i32 %count, ptr %pieces.at
  %own = urem i32 %thread, %parts
  br label %part

part:
  %part.number = phi i32 [ %own, %entry ], [ %part.next, %others ]
  %parts.left = phi i32 [ %parts, %entry ], [ %parts.fewer, %others ]
  %next.at = getelementptr %job, ptr %job, i32 0, i32 11, i32 %part.number
  %first = mul i32 %part.number, %each
  br label %take

take:
  %place = atomicrmw add ptr %next.at, i32 1 monotonic
  %piece = add i32 %first, %place
  %is_own = icmp slt i32 %place, %each
  %is_one = icmp slt i32 %piece, %count
  %is_left = and i1 %is_own, %is_one
  br i1 %is_left, label %work, label %others

work:
  %status = call i32 %run(i32 %piece, ptr %env, ptr %data)
  %is_fine = icmp eq i32 %status, 0
  br i1 %is_fine, label %take, label %fault

fault:                                  ; errors are known to the thread that meets them
  store ptr null, ptr %raised
  call void @TVMFFIErrorMoveFromRaised(ptr %raised)
  %error = load ptr, ptr %raised
  %claim = cmpxchg ptr %failed.at, i32 0, i32 %status seq_cst seq_cst
  %is_first = extractvalue { i32, i1 } %claim, 1
  br i1 %is_first, label %keep, label %drop

keep:
  store ptr %error, ptr %error.at
  br label %take

drop:
  %is_none = icmp eq ptr %error, null
  br i1 %is_none, label %take, label %release

release:
  %released = call i32 @TVMFFIObjectDecRef(ptr %error)
  br label %take

others:
  %part.after = add i32 %part.number, 1
  %is_last = icmp eq i32 %part.after, %parts
  %part.next = select i1 %is_last, i32 0, i32 %part.after
  %parts.fewer = sub i32 %parts.left, 1
  %is_done = icmp eq i32 %parts.fewer, 0
  br i1 %is_done, label %done, label %part

done:
  ret void
}

; What a thread of OpenMP does.
define internal void @share(ptr %job) {
entry:
  %pool = load ptr, ptr @pool
  %number.at = getelementptr %pool, ptr %pool, i32 0, i32 4
  %number = load ptr, ptr %number.at
  %thread = call i32 %number()
  call void @work(ptr %job, i32 %thread)
  %is_first = icmp eq i32 %thread, 0
  br i1 %is_first, label %first, label %end

first:
  %done.at = getelementptr %job, ptr %job, i32 0, i32 10
  %now = call i64 @llvm.readcyclecounter()
  store i64 %now, ptr %done.at
  br label %end

end:
  ret void
}

; Whether threads are left out of this launch.
define internal i1 @are_left(ptr %rest) {
entry:
  %left = load i32, ptr %rest
  %is_left = icmp ne i32 %left, 0
  br i1 %is_left, label %one, label %end

one:
  %less = sub i32 %left, 1
  store i32 %less, ptr %rest
  br label %end

end:
  ret i1 %is_left
}

; Leave threads out of some launches if the caller waited for them longer than it worked: of more and
; more, as long as it does. Where own threads stay on CPUs, as for measuring, none is ever left out.
define internal void @judge(ptr %pool, ptr %rest, i64 %since, i64 %done, i64 %until) {
entry:
  %cpus.at = getelementptr %pool, ptr %pool, i32 0, i32 6
  %cpus = load i32, ptr %cpus.at
  %are_free = icmp eq i32 %cpus, 0
  br i1 %are_free, label %look, label %end

look:
  %worked = sub i64 %done, %since
  %waited = sub i64 %until, %done
  %is_longer = icmp ugt i64 %waited, %worked
  %is_much = icmp ugt i64 %waited, 100000
  %was_long = and i1 %is_longer, %is_much
  %next.at = getelementptr %rest, ptr %rest, i32 0, i32 1
  %next = load i32, ptr %next.at
  %twice = shl i32 %next, 1
  %more = or i32 %twice, 1
  %capped = call i32 @llvm.umin.i32(i32 %more, i32 63)
  %half = lshr i32 %next, 1
  %then = select i1 %was_long, i32 %capped, i32 %half
  store i32 %then, ptr %next.at
  %leave = select i1 %was_long, i32 %capped, i32 0
  store i32 %leave, ptr %rest
  br label %end

end:
  ret void
}

define internal void @begin(ptr %job, ptr %run, ptr %data, i32 %parts, i32 %each, i32 %count) {
  store ptr %run, ptr %job
  %data.at = getelementptr %job, ptr %job, i32 0, i32 1
  store ptr %data, ptr %data.at
  %parts.at = getelementptr %job, ptr %job, i32 0, i32 2
  store i32 %parts, ptr %parts.at
  %each.at = getelementptr %job, ptr %job, i32 0, i32 3
  store i32 %each, ptr %each.at
  %count.at = getelementptr %job, ptr %job, i32 0, i32 5
  store i32 %count, ptr %count.at
  %failed.at = getelementptr %job, ptr %job, i32 0, i32 4
  store i32 0, ptr %failed.at
  %error.at = getelementptr %job, ptr %job, i32 0, i32 6
  store ptr null, ptr %error.at
  %next.at = getelementptr %job, ptr %job, i32 0, i32 11
  %size = mul i32 %parts, 4
  call void @llvm.memset.p0.i32(ptr %next.at, i8 0, i32 %size, i1 false)
  ret void
}

; What a job came to; the caller's thread knows its error then.
define internal i32 @ended(ptr %job) {
entry:
  %failed.at = getelementptr %job, ptr %job, i32 0, i32 4
  %failed = load i32, ptr %failed.at
  %error.at = getelementptr %job, ptr %job, i32 0, i32 6
  %error = load ptr, ptr %error.at
  %is_told = icmp ne ptr %error, null
  br i1 %is_told, label %tell, label %end

tell:
  call void @TVMFFIErrorSetRaised(ptr %error)
  %released = call i32 @TVMFFIObjectDecRef(ptr %error)
  br label %end

end:
  ret i32 %failed
}

define i32 @tilecore_launch(ptr %run, ptr %data, i32 %pieces) {
entry:
  %here = alloca %job
  %env = alloca %env
  %pool = load ptr, ptr @pool
  %cores = call i32 @cores(ptr %pool)
  %key.at = getelementptr %pool, ptr %pool, i32 0, i32 3
  %key = load i32, ptr %key.at
  %asked = call ptr @pthread_getspecific(i32 %key)
  %told.both = ptrtoint ptr %asked to i64
  %worth = trunc i64 %told.both to i32
  %told.long = lshr i64 %told.both, 32
  %iterations = trunc i64 %told.long to i32
  %left = call i32 @pthread_setspecific(i32 %key, ptr null)
  %is_all = icmp eq i32 %worth, 0
  %wanted = select i1 %is_all, i32 %cores, i32 %worth
  %is_few = icmp slt i32 %wanted, %cores
  %team = select i1 %is_few, i32 %wanted, i32 %cores
  %is_alone = icmp eq i32 %team, 1
  br i1 %is_alone, label %alone, label %many

alone:                                  ; no other thread is started
  store ptr null, ptr %env
  %one.at = getelementptr %env, ptr %env, i32 0, i32 1
  store i32 1, ptr %one.at
  %status = call i32 %run(i32 0, ptr %env, ptr %data)
  ret i32 %status

many:
  %is_large = icmp sgt i32 %team, 128
  %parts = select i1 %is_large, i32 128, i32 %team
  %usual = mul i32 %parts, 8
  %is_open = icmp eq i32 %pieces, 0
  %is_known = icmp ne i32 %iterations, 0
  %length = udiv i32 %iterations, %usual ; of a piece, at least
  %length.some = call i32 @llvm.umax.i32(i32 %length, i32 1)
  %up = add i32 %iterations, %length.some
  %up.less = sub i32 %up, 1
  %fitting = udiv i32 %up.less, %length.some
  %chosen = select i1 %is_known, i32 %fitting, i32 %usual
  %count = select i1 %is_open, i32 %chosen, i32 %pieces
  %part.up = add i32 %count, %parts
  %part.less = sub i32 %part.up, 1
  %each = udiv i32 %part.less, %parts
  %parallel = load ptr, ptr %pool
  %is_own = icmp eq ptr %parallel, null
  br i1 %is_own, label %own, label %torch

torch:
  %rest = getelementptr %pool, ptr %pool, i32 0, i32 12
  %is_late = call i1 @are_left(ptr %rest)
  br i1 %is_late, label %own, label %shared

own:
  %rest.own = getelementptr %pool, ptr %pool, i32 0, i32 11
  %is_apart = call i1 @are_left(ptr %rest.own)
  br i1 %is_apart, label %alone, label %together

together:
  %job = call ptr @taken(ptr %pool)
  %is_none = icmp eq ptr %job, null
  br i1 %is_none, label %alone, label %offered

offered:
  call void @begin(ptr %job, ptr %run, ptr %data, i32 %parts, i32 %each, i32 %count)
  %helpers = sub i32 %team, 1
  call void @offer(ptr %pool, ptr %job, i32 %helpers)
  %since = call i64 @llvm.readcyclecounter()
  call void @work(ptr %job, i32 0)
  %until = call i64 @llvm.readcyclecounter()
  call void @close(ptr %job)
  %end = call i64 @llvm.readcyclecounter()
  call void @judge(ptr %pool, ptr %rest.own, i64 %since, i64 %until, i64 %end)
  %told = call i32 @ended(ptr %job)
  %busy.at = getelementptr %job, ptr %job, i32 0, i32 8
  store atomic i32 0, ptr %busy.at release, align 4
  ret i32 %told

shared:
  call void @begin(ptr %here, ptr %run, ptr %data, i32 %parts, i32 %each, i32 %count)
  %begun = call i64 @llvm.readcyclecounter()
  call void %parallel(ptr @share, ptr %here, i32 %team, i32 0)
  %all = call i64 @llvm.readcyclecounter()
  %done.at = getelementptr %job, ptr %here, i32 0, i32 10
  %done = load i64, ptr %done.at
  call void @judge(ptr %pool, ptr %rest, i64 %begun, i64 %done, i64 %all)
  %result = call i32 @ended(ptr %here)
  ret i32 %result
}

; --- own threads ----------------------------------------------------------------------------------

; A job of the pool that no caller has; null: as many threads as there are jobs launch something.
define internal ptr @taken(ptr %pool) {
entry:
  br label %try

try:
  %i = phi i32 [ 0, %entry ], [ %next, %other ]
  %job = getelementptr %pool, ptr %pool, i32 0, i32 13, i32 %i
  %busy.at = getelementptr %job, ptr %job, i32 0, i32 8
  %claim = cmpxchg ptr %busy.at, i32 0, i32 1 seq_cst seq_cst
  %is_free = extractvalue { i32, i1 } %claim, 1
  br i1 %is_free, label %found, label %other

other:
  %next = add i32 %i, 1
  %is_end = icmp eq i32 %next, 4
  br i1 %is_end, label %none, label %try

found:
  ret ptr %job

none:
  ret ptr null
}

; Open a job to so many threads; start and wake them.
define internal void @offer(ptr %pool, ptr %job, i32 %helpers) {
entry:
  %thread = alloca i64
  %most.at = getelementptr %job, ptr %job, i32 0, i32 9
  store i32 %helpers, ptr %most.at
  %state.at = getelementptr %job, ptr %job, i32 0, i32 7
  store atomic i32 -2147483648, ptr %state.at seq_cst, align 4
  %turn.at = getelementptr %pool, ptr %pool, i32 0, i32 7
  %turn = atomicrmw add ptr %turn.at, i32 1 seq_cst
  %started.at = getelementptr %pool, ptr %pool, i32 0, i32 9
  br label %more

more:
  %started = load atomic i32, ptr %started.at seq_cst, align 4
  %is_enough = icmp sge i32 %started, %helpers
  br i1 %is_enough, label %awake, label %claim

claim:
  %next = add i32 %started, 1
  %claim.at = cmpxchg ptr %started.at, i32 %started, i32 %next seq_cst seq_cst
  %is_mine = extractvalue { i32, i1 } %claim.at, 1
  br i1 %is_mine, label %start, label %more

start:
  %code = call i32 @pthread_create(ptr %thread, ptr null, ptr @serve, ptr %pool)
  %is_running = icmp eq i32 %code, 0
  br i1 %is_running, label %apart, label %fewer

apart:
  %id = load i64, ptr %thread
  %detached = call i32 @pthread_detach(i64 %id)
  br label %more

fewer:                                  ; the next launch tries again
  %reverted = atomicrmw sub ptr %started.at, i32 1 seq_cst
  br label %awake

awake:
  %asleep.at = getelementptr %pool, ptr %pool, i32 0, i32 8
  %asleep = load atomic i32, ptr %asleep.at seq_cst, align 4
  %is_awake = icmp eq i32 %asleep, 0
  br i1 %is_awake, label %end, label %wake

wake:                                   ; futex, FUTEX_WAKE of this process
  %woken = call i64 (i64, ...) @syscall(i64 202, ptr %turn.at, i32 129, i32 %helpers)
  br label %end

end:
  ret void
}

; Let nobody in any more, and wait for those who are inside.
define internal void @close(ptr %job) {
entry:
  %state.at = getelementptr %job, ptr %job, i32 0, i32 7
  %state = atomicrmw and ptr %state.at, i32 2147483647 seq_cst
  br label %test

test:
  %turns = phi i32 [ 0, %entry ], [ %next, %pause ], [ 0, %yield ]
  %inside = load atomic i32, ptr %state.at seq_cst, align 4
  %is_empty = icmp eq i32 %inside, 0
  br i1 %is_empty, label %end, label %wait

wait:
  %is_long = icmp eq i32 %turns, 4096
  br i1 %is_long, label %yield, label %pause

pause:
  call void asm sideeffect "pause", ""()
  %next = add i32 %turns, 1
  br label %test

yield:                                  ; it may need this core
  %yielded = call i32 @sched_yield()
  br label %test

end:
  ret void
}

; What an own thread does, forever: it helps with every job that has room, and then looks out for
; launches for a while before it sleeps.
define internal ptr @serve(ptr %pool) {
entry:
  %turn.at = getelementptr %pool, ptr %pool, i32 0, i32 7
  %asleep.at = getelementptr %pool, ptr %pool, i32 0, i32 8
  %signals = alloca [16 x i64]
  call void @llvm.memset.p0.i64(ptr %signals, i8 -1, i64 128, i1 false)
  store i64 -1257, ptr %signals         ; all but those of faults: the interpreter's threads take them
  %numbers.at = getelementptr %pool, ptr %pool, i32 0, i32 10
  %before.this = atomicrmw add ptr %numbers.at, i32 1 seq_cst
  %number = add i32 %before.this, 1
  %masked = call i32 @pthread_sigmask(i32 0, ptr %signals, ptr null)
  %named = call i64 (i64, ...) @syscall(i64 157, i32 15, ptr @name)
  %masks.at = getelementptr %pool, ptr %pool, i32 0, i32 5
  %masks = load ptr, ptr %masks.at
  %cpus.at = getelementptr %pool, ptr %pool, i32 0, i32 6
  %cpus = load i32, ptr %cpus.at
  %is_free = icmp eq i32 %cpus, 0
  br i1 %is_free, label %begin, label %pin

pin:                                    ; sched_setaffinity of this thread
  %cpu = urem i32 %number, %cpus
  %mask = getelementptr [16 x i64], ptr %masks, i32 %cpu
  %pinned = call i64 (i64, ...) @syscall(i64 203, i64 0, i64 128, ptr %mask)
  br label %begin

begin:
  %turn = load atomic i32, ptr %turn.at seq_cst, align 4
  br label %look

look:
  %i = phi i32 [ 0, %begin ], [ %next, %other ]
  %job = getelementptr %pool, ptr %pool, i32 0, i32 13, i32 %i
  %state.at = getelementptr %job, ptr %job, i32 0, i32 7
  %most.at = getelementptr %job, ptr %job, i32 0, i32 9
  br label %ask

ask:
  %state = load atomic i32, ptr %state.at seq_cst, align 4
  %is_open = icmp slt i32 %state, 0
  br i1 %is_open, label %room, label %other

room:
  %inside = and i32 %state, 2147483647
  %most = load atomic i32, ptr %most.at monotonic, align 4
  %has_room = icmp slt i32 %inside, %most
  br i1 %has_room, label %enter, label %other

enter:
  %more = add i32 %state, 1
  %entry.at = cmpxchg ptr %state.at, i32 %state, i32 %more seq_cst seq_cst
  %is_inside = extractvalue { i32, i1 } %entry.at, 1
  br i1 %is_inside, label %help, label %ask

help:
  call void @work(ptr %job, i32 %number)
  %before = atomicrmw sub ptr %state.at, i32 1 seq_cst
  br label %other

other:
  %next = add i32 %i, 1
  %is_end = icmp eq i32 %next, 4
  br i1 %is_end, label %rest, label %look

rest:
  %since = call i64 @llvm.readcyclecounter()
  br label %spin

spin:
  %seen = load atomic i32, ptr %turn.at seq_cst, align 4
  %is_new = icmp ne i32 %seen, %turn
  br i1 %is_new, label %begin, label %pause

pause:
  call void asm sideeffect "pause", ""()
  %now = call i64 @llvm.readcyclecounter()
  %passed = sub i64 %now, %since
  %is_long = icmp ugt i64 %passed, 100000
  br i1 %is_long, label %sleep, label %spin

sleep:                                  ; futex, FUTEX_WAIT of this process
  %more_asleep = atomicrmw add ptr %asleep.at, i32 1 seq_cst
  %slept = call i64 (i64, ...) @syscall(i64 202, ptr %turn.at, i32 128, i32 %turn, ptr null)
  %less_asleep = atomicrmw sub ptr %asleep.at, i32 1 seq_cst
  br label %begin
}

declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memset.p0.i32(ptr, i8, i32, i1)
