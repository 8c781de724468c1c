; The entry `checked` of every CPU kernel: it looks at the arguments of a call and runs the kernel if
; they are what it takes, in a fraction of a microsecond. It returns 1 where it does not know that
; they are, and nothing where it ran. Its first argument is the address of what the kernel takes, as
; tilecore/runtime/native.py writes it: 64-bit numbers, all places counted in these.

; TVMFFIAny: type, padding, value. DLTensor: data, device, number, rank, code, bits, lanes, shape,
; strides, offset in bytes.
%any = type { i32, i32, i64 }
%tensor = type { ptr, i32, i32, i32, i32, ptr, ptr, i64 }
; kind (0 tensor, 1 integer, 2 bool, 3 float), type, rank, place of the extents (then of strides, or
; of the limits of an integer), whether strides are given, bytes of an element, whether it is
; written, what number an integer is (-1: none)
%param = type { i64, i64, i64, i64, i64, i64, i64, i64 }
%span = type { i64, i64, i64 } ; first and last byte + 1 of a tensor, whether it is written

declare i32 @__tvm_ffi_main(ptr, ptr, i32, ptr)

; Whether a number is what is wanted; below 0 that is number ~wanted, which the first use tells: until
; then it is the least of all, which no integer that is accepted is.
define internal i1 @is_wanted(i64 %found, i64 %wanted, ptr %numbers) {
entry:
  %is_fixed = icmp sge i64 %wanted, 0
  br i1 %is_fixed, label %fixed, label %named

fixed:
  %is_equal = icmp eq i64 %found, %wanted
  ret i1 %is_equal

named:
  %number = xor i64 %wanted, -1
  %at = getelementptr i64, ptr %numbers, i64 %number
  %old = load i64, ptr %at
  %is_new = icmp eq i64 %old, -9223372036854775808
  br i1 %is_new, label %first, label %again

first:
  store i64 %found, ptr %at
  ret i1 true

again:
  %is_same = icmp eq i64 %found, %old
  ret i1 %is_same
}

; Whether a tensor is what a parameter takes; writes down which bytes it has.
define internal i1 @is_tensor_wanted(ptr %tensor, ptr %table, ptr %param, ptr %numbers, ptr %span) {
entry:
  %device.at = getelementptr %tensor, ptr %tensor, i32 0, i32 1
  %device = load i32, ptr %device.at
  %is_here = icmp eq i32 %device, 1
  %rank.at = getelementptr %tensor, ptr %tensor, i32 0, i32 3
  %rank32 = load i32, ptr %rank.at
  %rank = sext i32 %rank32 to i64
  %rank.param = getelementptr %param, ptr %param, i32 0, i32 2
  %rank.wanted = load i64, ptr %rank.param
  %is_rank = icmp eq i64 %rank, %rank.wanted
  %type.at = getelementptr %tensor, ptr %tensor, i32 0, i32 4
  %type32 = load i32, ptr %type.at
  %type = zext i32 %type32 to i64
  %type.param = getelementptr %param, ptr %param, i32 0, i32 1
  %type.wanted = load i64, ptr %type.param
  %is_type = icmp eq i64 %type, %type.wanted
  %is_kind = and i1 %is_rank, %is_type
  %is_fine = and i1 %is_here, %is_kind
  br i1 %is_fine, label %layout, label %refused

layout:
  %shape.at = getelementptr %tensor, ptr %tensor, i32 0, i32 5
  %shape = load ptr, ptr %shape.at
  %strides.at = getelementptr %tensor, ptr %tensor, i32 0, i32 6
  %strides = load ptr, ptr %strides.at
  %place.param = getelementptr %param, ptr %param, i32 0, i32 3
  %place = load i64, ptr %place.param
  %extents = getelementptr i64, ptr %table, i64 %place
  %steps = getelementptr i64, ptr %extents, i64 %rank
  %strided.param = getelementptr %param, ptr %param, i32 0, i32 4
  %strided = load i64, ptr %strided.param
  %is_strided = icmp ne i64 %strided, 0
  %has_none = icmp eq ptr %strides, null
  br i1 %has_none, label %refused, label %test

test:                                   ; the axes, from the last one
  %left = phi i64 [ %rank, %layout ], [ %axis, %next ]
  %size = phi i64 [ 1, %layout ], [ %size.next, %next ]      ; elements of the axes behind
  %last = phi i64 [ 0, %layout ], [ %last.next, %next ]      ; from the first to the last element
  %is_dense = phi i1 [ true, %layout ], [ %is_dense.next, %next ]
  %is_done = icmp eq i64 %left, 0
  br i1 %is_done, label %done, label %look

look:
  %axis = sub i64 %left, 1
  %extent.at = getelementptr i64, ptr %shape, i64 %axis
  %extent = load i64, ptr %extent.at
  %extent.param = getelementptr i64, ptr %extents, i64 %axis
  %extent.wanted = load i64, ptr %extent.param
  %is_extent = call i1 @is_wanted(i64 %extent, i64 %extent.wanted, ptr %numbers)
  br i1 %is_extent, label %step, label %refused

step:
  %stride.at = getelementptr i64, ptr %strides, i64 %axis
  %stride = load i64, ptr %stride.at
  %is_long = icmp sgt i64 %extent, 1
  %way = sub i64 %extent, 1
  %far = mul i64 %way, %stride
  %last.next = add i64 %last, %far
  %size.next = mul i64 %size, %extent
  %is_next = icmp eq i64 %stride, %size
  %is_short = xor i1 %is_long, true
  %is_so = or i1 %is_next, %is_short
  %is_dense.next = and i1 %is_dense, %is_so
  br i1 %is_strided, label %given, label %next

given:
  %step.param = getelementptr i64, ptr %steps, i64 %axis
  %step.wanted = load i64, ptr %step.param
  br i1 %is_long, label %compare, label %short

short:                                  ; a stride that means nothing can tell no number
  %is_told = icmp slt i64 %step.wanted, 0
  br i1 %is_told, label %refused, label %next

compare:
  %is_step = call i1 @is_wanted(i64 %stride, i64 %step.wanted, ptr %numbers)
  br i1 %is_step, label %next, label %refused

next:
  br label %test

done:
  %is_empty = icmp eq i64 %size, 0
  %is_free = or i1 %is_strided, %is_empty
  %is_laid = or i1 %is_dense, %is_free
  br i1 %is_laid, label %place.it, label %refused

place.it:
  %data = load i64, ptr %tensor
  %offset.at = getelementptr %tensor, ptr %tensor, i32 0, i32 7
  %offset = load i64, ptr %offset.at
  %begin = add i64 %data, %offset
  %item.param = getelementptr %param, ptr %param, i32 0, i32 5
  %item = load i64, ptr %item.param
  %low = sub i64 %item, 1
  %odd = and i64 %begin, %low
  %count = add i64 %last, 1
  %bytes = mul i64 %count, %item
  %bytes.there = select i1 %is_empty, i64 0, i64 %bytes
  %end = add i64 %begin, %bytes.there
  store i64 %begin, ptr %span
  %end.at = getelementptr %span, ptr %span, i32 0, i32 1
  store i64 %end, ptr %end.at
  %written.param = getelementptr %param, ptr %param, i32 0, i32 6
  %written = load i64, ptr %written.param
  %written.at = getelementptr %span, ptr %span, i32 0, i32 2
  store i64 %written, ptr %written.at
  %is_aligned = icmp eq i64 %odd, 0
  ret i1 %is_aligned

refused:
  ret i1 false
}

; Whether an argument that is no tensor is what a parameter takes.
define internal i1 @is_scalar_wanted(ptr %arg, ptr %table, ptr %param, ptr %numbers) {
entry:
  %type32 = load i32, ptr %arg
  %type = zext i32 %type32 to i64
  %kind = load i64, ptr %param
  %is_kind = icmp eq i64 %type, %kind   ; the kinds are numbered as TVM's types are
  br i1 %is_kind, label %value, label %refused

value:
  %is_integer = icmp eq i64 %kind, 1
  br i1 %is_integer, label %integer, label %fine

integer:
  %value.at = getelementptr %any, ptr %arg, i32 0, i32 2
  %found = load i64, ptr %value.at
  %place.param = getelementptr %param, ptr %param, i32 0, i32 3
  %place = load i64, ptr %place.param
  %low.at = getelementptr i64, ptr %table, i64 %place
  %low = load i64, ptr %low.at
  %high.at = getelementptr i64, ptr %low.at, i64 1
  %high = load i64, ptr %high.at
  %is_above = icmp sge i64 %found, %low
  %is_below = icmp sle i64 %found, %high
  %is_inside = and i1 %is_above, %is_below
  br i1 %is_inside, label %name, label %refused

name:
  %number.param = getelementptr %param, ptr %param, i32 0, i32 7
  %number = load i64, ptr %number.param
  %is_named = icmp sge i64 %number, 0
  br i1 %is_named, label %number.it, label %fine

number.it:
  %wanted = xor i64 %number, -1
  %is_same = call i1 @is_wanted(i64 %found, i64 %wanted, ptr %numbers)
  ret i1 %is_same

fine:
  ret i1 true

refused:
  ret i1 false
}

; Whether no tensor that is written shares bytes with another one.
define internal i1 @are_apart(ptr %spans, i64 %count) {
entry:
  br label %one

one:
  %i = phi i64 [ 0, %entry ], [ %i.next, %one.next ]
  %is_end = icmp eq i64 %i, %count
  br i1 %is_end, label %apart, label %look

look:
  %a = getelementptr %span, ptr %spans, i64 %i
  %written.at = getelementptr %span, ptr %a, i32 0, i32 2
  %written = load i64, ptr %written.at
  %is_written = icmp ne i64 %written, 0
  br i1 %is_written, label %other, label %one.next

other:
  %j = phi i64 [ 0, %look ], [ %j.next, %other.next ]
  %is_last = icmp eq i64 %j, %count
  br i1 %is_last, label %one.next, label %compare

compare:
  %b = getelementptr %span, ptr %spans, i64 %j
  %a.begin = load i64, ptr %a
  %b.begin = load i64, ptr %b
  %a.end.at = getelementptr %span, ptr %a, i32 0, i32 1
  %b.end.at = getelementptr %span, ptr %b, i32 0, i32 1
  %a.end = load i64, ptr %a.end.at
  %b.end = load i64, ptr %b.end.at
  %before = icmp ult i64 %a.begin, %b.end
  %behind = icmp ult i64 %b.begin, %a.end
  %meet = and i1 %before, %behind
  %is_other = icmp ne i64 %i, %j
  %share = and i1 %meet, %is_other
  br i1 %share, label %refused, label %other.next

other.next:
  %j.next = add i64 %j, 1
  br label %other

one.next:
  %i.next = add i64 %i, 1
  br label %one

apart:
  ret i1 true

refused:
  ret i1 false
}

; The table: number of parameters, the parameters, then extents, strides and limits. No kernel with
; one has more than 32 tensors or 32 numbers.
define i32 @__tvm_ffi_checked(ptr %self, ptr %args, i32 %given, ptr %result) {
entry:
  %numbers = alloca [32 x i64]
  %spans = alloca [32 x %span]
  %first = getelementptr %any, ptr %args, i64 0, i32 2
  %table = load ptr, ptr %first
  %count = load i64, ptr %table
  %given64 = sext i32 %given to i64
  %rest = sub i64 %given64, 1
  %is_count = icmp eq i64 %rest, %count
  br i1 %is_count, label %forget, label %refused

forget:
  %n = phi i64 [ 0, %entry ], [ %n.next, %forget ]
  %number.at = getelementptr i64, ptr %numbers, i64 %n
  store i64 -9223372036854775808, ptr %number.at
  %n.next = add i64 %n, 1
  %is_all = icmp eq i64 %n.next, 32
  br i1 %is_all, label %test, label %forget

test:
  %i = phi i64 [ 0, %forget ], [ %i.next, %next ]
  %tensors = phi i64 [ 0, %forget ], [ %tensors.next, %next ]
  %is_done = icmp eq i64 %i, %count
  br i1 %is_done, label %apart, label %look

look:
  %i.next = add i64 %i, 1
  %arg = getelementptr %any, ptr %args, i64 %i.next
  %params = getelementptr i64, ptr %table, i64 1
  %param = getelementptr %param, ptr %params, i64 %i
  %kind = load i64, ptr %param
  %is_tensor = icmp eq i64 %kind, 0
  br i1 %is_tensor, label %tensor, label %scalar

scalar:
  %is_scalar = call i1 @is_scalar_wanted(ptr %arg, ptr %table, ptr %param, ptr %numbers)
  br label %next.if

tensor:                                 ; 7: a DLTensor, 70: an object that holds one
  %type = load i32, ptr %arg
  %value.at = getelementptr %any, ptr %arg, i32 0, i32 2
  %value = load ptr, ptr %value.at
  %inside = getelementptr i8, ptr %value, i64 24
  %is_bare = icmp eq i32 %type, 7
  %is_held = icmp eq i32 %type, 70
  %found = select i1 %is_held, ptr %inside, ptr %value
  %is_one = or i1 %is_bare, %is_held
  br i1 %is_one, label %dense, label %refused

dense:
  %span = getelementptr %span, ptr %spans, i64 %tensors
  %is_wanted = call i1 @is_tensor_wanted(ptr %found, ptr %table, ptr %param, ptr %numbers, ptr %span)
  br label %next.if

next.if:
  %is_fine = phi i1 [ %is_scalar, %scalar ], [ %is_wanted, %dense ]
  %one = phi i64 [ 0, %scalar ], [ 1, %dense ]
  br i1 %is_fine, label %next, label %refused

next:
  %tensors.next = add i64 %tensors, %one
  br label %test

apart:
  %are_apart = call i1 @are_apart(ptr %spans, i64 %tensors)
  br i1 %are_apart, label %run, label %refused

run:
  %others = getelementptr %any, ptr %args, i64 1
  %count32 = trunc i64 %count to i32
  %status = call i32 @__tvm_ffi_main(ptr %self, ptr %others, i32 %count32, ptr %result)
  ret i32 %status

refused:
  store i32 1, ptr %result
  %padding = getelementptr %any, ptr %result, i32 0, i32 1
  store i32 0, ptr %padding
  %answer = getelementptr %any, ptr %result, i32 0, i32 2
  store i64 1, ptr %answer
  ret i32 0
}
