; How a kernel runs its grid on the threads of an OpenMP runtime that the process has already
; (torch's): `tilecore_launch` stands in for TVMBackendParallelLaunch once `tilecore_join` was told
; where that runtime is (tilecore/runtime/threads.py).

; GOMP_parallel (null: use TVM's threads), omp_get_thread_num, omp_get_num_threads, TVM's launch,
; cores, who says how many of them are used now (null: all), and under which key each thread has how
; many threads its next launch is worth (0: all there are). No thread_local of the kernel's own: the
; loader (glibc 2.36) ends the process where a library with several such dependencies meets the end
; of its table, which holds as many libraries as 64 kernels.
%pool = type { ptr, ptr, ptr, ptr, i32, ptr, i32 }
%env = type { ptr, i32 }                ; TVMParallelGroupEnv: no barrier, number of tasks
%job = type { ptr, ptr, i32, i32, ptr } ; function, its data, number of tasks, failure, its error

@pool = internal global ptr null

declare void @TVMFFIErrorMoveFromRaised(ptr)
declare void @TVMFFIErrorSetRaised(ptr)
declare i32 @TVMFFIObjectDecRef(ptr)
declare ptr @pthread_getspecific(i32)
declare i32 @pthread_setspecific(i32, ptr)

define void @tilecore_join(ptr %pool) {
  store ptr %pool, ptr @pool
  ret void
}

define i32 @tilecore_team(i32 %threads) {
entry:
  %pool = load ptr, ptr @pool
  %is_none = icmp eq ptr %pool, null
  br i1 %is_none, label %end, label %told

told:
  %key.at = getelementptr %pool, ptr %pool, i32 0, i32 6
  %key = load i32, ptr %key.at
  %worth = inttoptr i32 %threads to ptr
  %kept = call i32 @pthread_setspecific(i32 %key, ptr %worth)
  br label %end

end:
  ret i32 0
}

; How many threads a pool has for the caller.
define internal i32 @cores(ptr %pool) {
entry:
  %cores.at = getelementptr %pool, ptr %pool, i32 0, i32 4
  %cores = load i32, ptr %cores.at
  %limit.at = getelementptr %pool, ptr %pool, i32 0, i32 5
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

; Whether a grid for which a team of one is asked runs on one thread: only torch's are told.
define i32 @tilecore_alone() {
entry:
  %pool = load ptr, ptr @pool
  %is_none = icmp eq ptr %pool, null
  br i1 %is_none, label %many, label %some

many:
  ret i32 0

some:
  %parallel = load ptr, ptr %pool
  %is_told = icmp ne ptr %parallel, null
  %cores = call i32 @cores(ptr %pool)
  %is_one = icmp eq i32 %cores, 1
  %is_alone = and i1 %is_told, %is_one
  %alone = zext i1 %is_alone to i32
  ret i32 %alone
}

define internal void @share(ptr %job) {
entry:
  %env = alloca %env
  %raised = alloca ptr
  %pool = load ptr, ptr @pool
  %number.at = getelementptr %pool, ptr %pool, i32 0, i32 1
  %number = load ptr, ptr %number.at
  %team.at = getelementptr %pool, ptr %pool, i32 0, i32 2
  %team = load ptr, ptr %team.at
  %first = call i32 %number()
  %step = call i32 %team()
  %run = load ptr, ptr %job
  %data.at = getelementptr %job, ptr %job, i32 0, i32 1
  %data = load ptr, ptr %data.at
  %count.at = getelementptr %job, ptr %job, i32 0, i32 2
  %count = load i32, ptr %count.at
  %failed.at = getelementptr %job, ptr %job, i32 0, i32 3
  %error.at = getelementptr %job, ptr %job, i32 0, i32 4
  store ptr null, ptr %env
  %tasks.at = getelementptr %env, ptr %env, i32 0, i32 1
  store i32 %count, ptr %tasks.at
  br label %test

test:
  %task = phi i32 [ %first, %entry ], [ %next, %after ]
  %is_mine = icmp slt i32 %task, %count
  br i1 %is_mine, label %work, label %done

work:
  %status = call i32 %run(i32 %task, ptr %env, ptr %data)
  %is_fine = icmp eq i32 %status, 0
  br i1 %is_fine, label %after, label %fault

fault:                                  ; errors are known to the thread that meets them
  store ptr null, ptr %raised
  call void @TVMFFIErrorMoveFromRaised(ptr %raised)
  %error = load ptr, ptr %raised
  %claim = cmpxchg ptr %failed.at, i32 0, i32 %status seq_cst seq_cst
  %is_first = extractvalue { i32, i1 } %claim, 1
  br i1 %is_first, label %keep, label %drop

keep:
  store ptr %error, ptr %error.at
  br label %after

drop:
  %is_none = icmp eq ptr %error, null
  br i1 %is_none, label %after, label %release

release:
  %released = call i32 @TVMFFIObjectDecRef(ptr %error)
  br label %after

after:
  %next = add i32 %task, %step
  br label %test

done:
  ret void
}

define i32 @tilecore_launch(ptr %run, ptr %data, i32 %tasks) {
entry:
  %job = alloca %job
  %env = alloca %env
  %pool = load ptr, ptr @pool
  %cores = call i32 @cores(ptr %pool)
  %key.at = getelementptr %pool, ptr %pool, i32 0, i32 6
  %key = load i32, ptr %key.at
  %asked = call ptr @pthread_getspecific(i32 %key)
  %worth = ptrtoint ptr %asked to i32
  %left = call i32 @pthread_setspecific(i32 %key, ptr null)
  %is_all = icmp eq i32 %worth, 0
  %wanted = select i1 %is_all, i32 %cores, i32 %worth
  %is_few = icmp slt i32 %wanted, %cores
  %team = select i1 %is_few, i32 %wanted, i32 %cores
  %is_open = icmp eq i32 %tasks, 0
  %count = select i1 %is_open, i32 %team, i32 %tasks
  %is_alone = icmp eq i32 %count, 1
  br i1 %is_alone, label %alone, label %many

alone:                                  ; no other thread is started
  store ptr null, ptr %env
  %one.at = getelementptr %env, ptr %env, i32 0, i32 1
  store i32 1, ptr %one.at
  %status = call i32 %run(i32 0, ptr %env, ptr %data)
  ret i32 %status

many:
  %parallel = load ptr, ptr %pool
  %is_own = icmp eq ptr %parallel, null
  br i1 %is_own, label %own, label %shared

own:
  %launch.at = getelementptr %pool, ptr %pool, i32 0, i32 3
  %launch = load ptr, ptr %launch.at
  %told = call i32 %launch(ptr %run, ptr %data, i32 %count)
  ret i32 %told

shared:
  %is_fewer = icmp slt i32 %count, %team
  %threads = select i1 %is_fewer, i32 %count, i32 %team
  store ptr %run, ptr %job
  %data.at = getelementptr %job, ptr %job, i32 0, i32 1
  store ptr %data, ptr %data.at
  %count.at = getelementptr %job, ptr %job, i32 0, i32 2
  store i32 %count, ptr %count.at
  %failed.at = getelementptr %job, ptr %job, i32 0, i32 3
  store i32 0, ptr %failed.at
  %error.at = getelementptr %job, ptr %job, i32 0, i32 4
  store ptr null, ptr %error.at
  call void %parallel(ptr @share, ptr %job, i32 %threads, i32 0)
  %failed = load i32, ptr %failed.at
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
