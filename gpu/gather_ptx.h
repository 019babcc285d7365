#ifndef TRYST_GPU_GATHER_PTX_H_
#define TRYST_GPU_GATHER_PTX_H_

namespace tryst {

// gather.cu as nvcc -ptx -O3 -arch=compute_75 makes it, under the oldest .version that has
// all of its instructions, so that drivers older than the toolkit compile it too.
inline constexpr char kGatherPtx[] = R"ptx(
.version 7.0
.target sm_75
.address_size 64
.visible .entry tryst_gather(
	.param .u64 tryst_gather_param_0,
	.param .u32 tryst_gather_param_1
)
{
	.reg .pred 	%p<21>;
	.reg .b16 	%rs<8>;
	.reg .b32 	%r<57>;
	.reg .b64 	%rd<129>;
	ld.param.u64 	%rd54, [tryst_gather_param_0];
	ld.param.u32 	%r6, [tryst_gather_param_1];
	mov.u32 	%r56, %ctaid.x;
	setp.ge.u32 	%p1, %r56, %r6;
	@%p1 bra 	$L__BB0_25;
	mov.u32 	%r7, %tid.x;
	cvt.u64.u32 	%rd1, %r7;
	mov.u32 	%r8, %ntid.x;
	cvt.u64.u32 	%rd2, %r8;
	mul.wide.u32 	%rd3, %r8, 3;
	add.s64 	%rd4, %rd3, %rd1;
	mul.wide.u32 	%rd5, %r8, 4;
	mov.u32 	%r2, %nctaid.x;
	mul.wide.u32 	%rd6, %r8, 16;
	mul.wide.u32 	%rd55, %r7, 16;
	add.s64 	%rd7, %rd55, -1;
	mul.wide.u32 	%rd56, %r7, 4;
	add.s64 	%rd8, %rd56, -1;
	neg.s64 	%rd9, %rd2;
	cvta.to.global.u64 	%rd10, %rd54;
	shl.b64 	%rd104, %rd9, 4;
$L__BB0_2:
	mul.wide.u32 	%rd57, %r56, 24;
	add.s64 	%rd58, %rd10, %rd57;
	ld.global.u64 	%rd11, [%rd58+8];
	ld.global.u64 	%rd12, [%rd58];
	xor.b64  	%rd59, %rd11, %rd12;
	and.b64  	%rd13, %rd59, 15;
	setp.eq.s64 	%p2, %rd13, 0;
	and.b64  	%rd60, %rd59, 3;
	setp.eq.s64 	%p3, %rd60, 0;
	selp.b32 	%r9, 4, 1, %p3;
	selp.b32 	%r4, 16, %r9, %p2;
	cvt.u64.u32 	%rd61, %r4;
	add.s32 	%r10, %r4, -1;
	cvt.u64.u32 	%rd62, %r10;
	and.b64  	%rd63, %rd12, %rd62;
	sub.s64 	%rd64, %rd61, %rd63;
	and.b64  	%rd65, %rd64, %rd62;
	ld.global.u64 	%rd14, [%rd58+16];
	min.u64 	%rd15, %rd65, %rd14;
	sub.s64 	%rd66, %rd14, %rd15;
	neg.s64 	%rd67, %rd61;
	and.b64  	%rd16, %rd66, %rd67;
	setp.le.u64 	%p4, %rd15, %rd1;
	@%p4 bra 	$L__BB0_4;
	add.s64 	%rd68, %rd11, %rd1;
	ld.u8 	%rs1, [%rd68];
	add.s64 	%rd69, %rd12, %rd1;
	st.u8 	[%rd69], %rs1;
$L__BB0_4:
	@%p2 bra 	$L__BB0_16;
	add.s64 	%rd19, %rd12, %rd15;
	add.s64 	%rd20, %rd11, %rd15;
	setp.eq.s32 	%p6, %r4, 4;
	@%p6 bra 	$L__BB0_11;
	bra.uni 	$L__BB0_6;
$L__BB0_11:
	shr.u64 	%rd29, %rd16, 2;
	setp.ge.u64 	%p11, %rd4, %rd29;
	mov.u64 	%rd123, %rd1;
	@%p11 bra 	$L__BB0_14;
	add.s64 	%rd81, %rd11, %rd8;
	add.s64 	%rd82, %rd15, 1;
	add.s64 	%rd121, %rd81, %rd82;
	add.s64 	%rd83, %rd12, %rd8;
	add.s64 	%rd122, %rd83, %rd82;
	mov.u64 	%rd123, %rd1;
$L__BB0_13:
	ld.u32 	%r11, [%rd121];
	add.s64 	%rd84, %rd121, %rd5;
	ld.u32 	%r12, [%rd84];
	add.s64 	%rd85, %rd84, %rd5;
	ld.u32 	%r13, [%rd85];
	add.s64 	%rd86, %rd85, %rd5;
	add.s64 	%rd121, %rd86, %rd5;
	ld.u32 	%r14, [%rd86];
	st.u32 	[%rd122], %r11;
	add.s64 	%rd87, %rd122, %rd5;
	st.u32 	[%rd87], %r12;
	add.s64 	%rd88, %rd87, %rd5;
	st.u32 	[%rd88], %r13;
	add.s64 	%rd89, %rd88, %rd5;
	add.s64 	%rd122, %rd89, %rd5;
	st.u32 	[%rd89], %r14;
	add.s64 	%rd90, %rd123, %rd2;
	add.s64 	%rd123, %rd3, %rd90;
	add.s64 	%rd91, %rd123, %rd3;
	setp.lt.u64 	%p12, %rd91, %rd29;
	@%p12 bra 	$L__BB0_13;
$L__BB0_14:
	setp.ge.u64 	%p13, %rd123, %rd29;
	@%p13 bra 	$L__BB0_22;
$L__BB0_15:
	shl.b64 	%rd92, %rd123, 2;
	add.s64 	%rd93, %rd20, %rd92;
	ld.u32 	%r15, [%rd93];
	add.s64 	%rd94, %rd19, %rd92;
	st.u32 	[%rd94], %r15;
	add.s64 	%rd123, %rd123, %rd2;
	setp.lt.u64 	%p14, %rd123, %rd29;
	@%p14 bra 	$L__BB0_15;
	bra.uni 	$L__BB0_22;
$L__BB0_16:
	add.s64 	%rd42, %rd11, %rd15;
	shr.u64 	%rd43, %rd16, 4;
	setp.ge.u64 	%p15, %rd4, %rd43;
	mov.u64 	%rd127, %rd1;
	@%p15 bra 	$L__BB0_19;
	add.s64 	%rd95, %rd12, %rd7;
	add.s64 	%rd96, %rd95, %rd15;
	add.s64 	%rd126, %rd96, 1;
	mov.u64 	%rd127, %rd1;
$L__BB0_18:
	shl.b64 	%rd97, %rd127, 4;
	add.s64 	%rd98, %rd42, %rd97;
	shl.b64 	%rd99, %rd2, 2;
	shl.b64 	%rd100, %rd2, 4;
	add.s64 	%rd101, %rd98, %rd100;
	ld.v4.u32 	{%r16, %r17, %r18, %r19}, [%rd101];
	add.s64 	%rd102, %rd101, %rd6;
	ld.v4.u32 	{%r24, %r25, %r26, %r27}, [%rd102];
	add.s64 	%rd103, %rd102, %rd6;
	ld.v4.u32 	{%r32, %r33, %r34, %r35}, [%rd103];
	add.s64 	%rd105, %rd101, %rd104;
	ld.v4.u32 	{%r40, %r41, %r42, %r43}, [%rd105];
	st.v4.u32 	[%rd126], {%r40, %r41, %r42, %r43};
	add.s64 	%rd106, %rd126, %rd6;
	st.v4.u32 	[%rd106], {%r16, %r17, %r18, %r19};
	add.s64 	%rd107, %rd106, %rd6;
	st.v4.u32 	[%rd107], {%r24, %r25, %r26, %r27};
	add.s64 	%rd108, %rd107, %rd6;
	add.s64 	%rd126, %rd108, %rd6;
	st.v4.u32 	[%rd108], {%r32, %r33, %r34, %r35};
	add.s64 	%rd127, %rd99, %rd127;
	add.s64 	%rd109, %rd127, %rd3;
	setp.lt.u64 	%p16, %rd109, %rd43;
	@%p16 bra 	$L__BB0_18;
$L__BB0_19:
	setp.ge.u64 	%p17, %rd127, %rd43;
	@%p17 bra 	$L__BB0_22;
	add.s64 	%rd50, %rd12, %rd15;
$L__BB0_21:
	shl.b64 	%rd110, %rd127, 4;
	add.s64 	%rd111, %rd50, %rd110;
	add.s64 	%rd112, %rd42, %rd110;
	ld.v4.u32 	{%r48, %r49, %r50, %r51}, [%rd112];
	st.v4.u32 	[%rd111], {%r48, %r49, %r50, %r51};
	add.s64 	%rd127, %rd127, %rd2;
	setp.lt.u64 	%p18, %rd127, %rd43;
	@%p18 bra 	$L__BB0_21;
	bra.uni 	$L__BB0_22;
$L__BB0_6:
	setp.ge.u64 	%p7, %rd4, %rd16;
	mov.u64 	%rd118, %rd1;
	@%p7 bra 	$L__BB0_9;
	add.s64 	%rd21, %rd15, %rd2;
	mov.u64 	%rd116, %rd4;
	mov.u64 	%rd118, %rd1;
$L__BB0_8:
	add.s64 	%rd70, %rd20, %rd118;
	ld.u8 	%rs2, [%rd70];
	add.s64 	%rd71, %rd21, %rd118;
	add.s64 	%rd72, %rd11, %rd71;
	ld.u8 	%rs3, [%rd72];
	add.s64 	%rd73, %rd72, %rd2;
	ld.u8 	%rs4, [%rd73];
	add.s64 	%rd74, %rd20, %rd116;
	ld.u8 	%rs5, [%rd74];
	add.s64 	%rd75, %rd19, %rd118;
	st.u8 	[%rd75], %rs2;
	add.s64 	%rd76, %rd12, %rd71;
	st.u8 	[%rd76], %rs3;
	add.s64 	%rd77, %rd76, %rd2;
	st.u8 	[%rd77], %rs4;
	add.s64 	%rd78, %rd19, %rd116;
	st.u8 	[%rd78], %rs5;
	add.s64 	%rd118, %rd118, %rd5;
	add.s64 	%rd116, %rd118, %rd3;
	setp.lt.u64 	%p8, %rd116, %rd16;
	@%p8 bra 	$L__BB0_8;
$L__BB0_9:
	setp.ge.u64 	%p9, %rd118, %rd16;
	@%p9 bra 	$L__BB0_22;
$L__BB0_10:
	add.s64 	%rd79, %rd20, %rd118;
	ld.u8 	%rs6, [%rd79];
	add.s64 	%rd80, %rd19, %rd118;
	st.u8 	[%rd80], %rs6;
	add.s64 	%rd118, %rd118, %rd2;
	setp.lt.u64 	%p10, %rd118, %rd16;
	@%p10 bra 	$L__BB0_10;
$L__BB0_22:
	add.s64 	%rd113, %rd15, %rd1;
	add.s64 	%rd53, %rd113, %rd16;
	setp.ge.u64 	%p19, %rd53, %rd14;
	@%p19 bra 	$L__BB0_24;
	add.s64 	%rd114, %rd11, %rd53;
	ld.u8 	%rs7, [%rd114];
	add.s64 	%rd115, %rd12, %rd53;
	st.u8 	[%rd115], %rs7;
$L__BB0_24:
	add.s32 	%r56, %r56, %r2;
	setp.lt.u32 	%p20, %r56, %r6;
	@%p20 bra 	$L__BB0_2;
$L__BB0_25:
	ret;
}
)ptx";

}  // namespace tryst

#endif  // TRYST_GPU_GATHER_PTX_H_
