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
.maxntid 512, 1, 1
.minnctapersm 2
{
	.reg .pred 	%p<79>;
	.reg .b16 	%rs<58>;
	.reg .b32 	%r<329>;
	.reg .b64 	%rd<271>;
	ld.param.u64 	%rd45, [tryst_gather_param_0];
	ld.param.u32 	%r131, [tryst_gather_param_1];
	mov.u32 	%r244, %ctaid.x;
	setp.ge.u32 	%p1, %r244, %r131;
	@%p1 bra 	$L__BB0_118;
	mov.u32 	%r132, %tid.x;
	cvt.u64.u32 	%rd1, %r132;
	mov.u32 	%r133, %ntid.x;
	cvt.u64.u32 	%rd2, %r133;
	cvta.to.global.u64 	%rd46, %rd45;
$L__BB0_2:
	mul.wide.u32 	%rd47, %r244, 24;
	add.s64 	%rd48, %rd46, %rd47;
	ld.global.u64 	%rd3, [%rd48];
	ld.global.u64 	%rd4, [%rd48+8];
	xor.b64  	%rd49, %rd3, %rd4;
	and.b64  	%rd5, %rd49, 15;
	setp.eq.s64 	%p2, %rd5, 0;
	setp.eq.s64 	%p3, %rd5, 8;
	and.b64  	%rd50, %rd49, 3;
	setp.eq.s64 	%p4, %rd50, 0;
	selp.b32 	%r134, 4, 1, %p4;
	selp.b32 	%r135, 8, %r134, %p3;
	selp.b32 	%r3, 16, %r135, %p2;
	cvt.u64.u32 	%rd51, %r3;
	add.s32 	%r136, %r3, -1;
	cvt.u64.u32 	%rd52, %r136;
	and.b64  	%rd53, %rd3, %rd52;
	sub.s64 	%rd54, %rd51, %rd53;
	and.b64  	%rd55, %rd54, %rd52;
	ld.global.u64 	%rd6, [%rd48+16];
	min.u64 	%rd7, %rd55, %rd6;
	sub.s64 	%rd56, %rd6, %rd7;
	neg.s64 	%rd57, %rd51;
	and.b64  	%rd8, %rd56, %rd57;
	setp.le.u64 	%p5, %rd7, %rd1;
	@%p5 bra 	$L__BB0_4;
	add.s64 	%rd58, %rd4, %rd1;
	ld.u8 	%rs32, [%rd58];
	add.s64 	%rd59, %rd3, %rd1;
	st.u8 	[%rd59], %rs32;
$L__BB0_4:
	@%p2 bra 	$L__BB0_88;
	setp.eq.s32 	%p7, %r3, 8;
	@%p7 bra 	$L__BB0_61;
	bra.uni 	$L__BB0_6;
$L__BB0_61:
	shr.u64 	%rd26, %rd8, 3;
	setp.le.u64 	%p37, %rd26, %rd1;
	@%p37 bra 	$L__BB0_115;
	mov.u64 	%rd269, %rd1;
$L__BB0_63:
	shr.u64 	%rd250, %rd8, 3;
	setp.ge.u64 	%p38, %rd269, %rd250;
	@%p38 bra 	$L__BB0_65;
	add.s64 	%rd233, %rd4, %rd7;
	shl.b64 	%rd97, %rd269, 3;
	add.s64 	%rd96, %rd233, %rd97;
	ld.global.cs.v2.u32 {%r270,%r269}, [%rd96];
$L__BB0_65:
	shr.u64 	%rd229, %rd8, 3;
	add.s64 	%rd30, %rd269, %rd2;
	setp.ge.u64 	%p39, %rd30, %rd229;
	@%p39 bra 	$L__BB0_67;
	add.s64 	%rd232, %rd4, %rd7;
	shl.b64 	%rd99, %rd30, 3;
	add.s64 	%rd98, %rd232, %rd99;
	ld.global.cs.v2.u32 {%r272,%r271}, [%rd98];
$L__BB0_67:
	shr.u64 	%rd252, %rd8, 3;
	add.s64 	%rd251, %rd269, %rd2;
	add.s64 	%rd31, %rd251, %rd2;
	setp.ge.u64 	%p40, %rd31, %rd252;
	@%p40 bra 	$L__BB0_69;
	add.s64 	%rd231, %rd4, %rd7;
	shl.b64 	%rd101, %rd31, 3;
	add.s64 	%rd100, %rd231, %rd101;
	ld.global.cs.v2.u32 {%r274,%r273}, [%rd100];
$L__BB0_69:
	add.s64 	%rd255, %rd251, %rd2;
	shr.u64 	%rd254, %rd8, 3;
	add.s64 	%rd253, %rd269, %rd2;
	add.s64 	%rd32, %rd255, %rd2;
	setp.ge.u64 	%p41, %rd32, %rd254;
	@%p41 bra 	$L__BB0_71;
	add.s64 	%rd263, %rd269, %rd2;
	add.s64 	%rd262, %rd251, %rd2;
	add.s64 	%rd261, %rd255, %rd2;
	add.s64 	%rd230, %rd4, %rd7;
	shl.b64 	%rd103, %rd261, 3;
	add.s64 	%rd102, %rd230, %rd103;
	ld.global.cs.v2.u32 {%r276,%r275}, [%rd102];
$L__BB0_71:
	add.s64 	%rd259, %rd269, %rd2;
	add.s64 	%rd258, %rd251, %rd2;
	add.s64 	%rd257, %rd255, %rd2;
	shr.u64 	%rd256, %rd8, 3;
	add.s64 	%rd33, %rd257, %rd2;
	setp.ge.u64 	%p42, %rd33, %rd256;
	@%p42 bra 	$L__BB0_73;
	add.s64 	%rd241, %rd4, %rd7;
	shl.b64 	%rd105, %rd33, 3;
	add.s64 	%rd104, %rd241, %rd105;
	ld.global.cs.v2.u32 {%r278,%r277}, [%rd104];
$L__BB0_73:
	shr.u64 	%rd260, %rd8, 3;
	add.s64 	%rd34, %rd33, %rd2;
	setp.ge.u64 	%p43, %rd34, %rd260;
	@%p43 bra 	$L__BB0_75;
	add.s64 	%rd240, %rd4, %rd7;
	shl.b64 	%rd107, %rd34, 3;
	add.s64 	%rd106, %rd240, %rd107;
	ld.global.cs.v2.u32 {%r280,%r279}, [%rd106];
$L__BB0_75:
	shr.u64 	%rd223, %rd8, 3;
	setp.ge.u64 	%p75, %rd269, %rd223;
	@%p75 bra 	$L__BB0_77;
	add.s64 	%rd239, %rd3, %rd7;
	shl.b64 	%rd109, %rd269, 3;
	add.s64 	%rd108, %rd239, %rd109;
	st.global.cs.v2.u32 [%rd108], {%r270,%r269};
$L__BB0_77:
	shr.u64 	%rd228, %rd8, 3;
	add.s64 	%rd227, %rd269, %rd2;
	setp.ge.u64 	%p76, %rd227, %rd228;
	@%p76 bra 	$L__BB0_79;
	add.s64 	%rd238, %rd3, %rd7;
	add.s64 	%rd226, %rd269, %rd2;
	shl.b64 	%rd111, %rd226, 3;
	add.s64 	%rd110, %rd238, %rd111;
	st.global.cs.v2.u32 [%rd110], {%r272,%r271};
$L__BB0_79:
	add.s64 	%rd244, %rd269, %rd2;
	shr.u64 	%rd243, %rd8, 3;
	add.s64 	%rd242, %rd244, %rd2;
	setp.ge.u64 	%p77, %rd242, %rd243;
	@%p77 bra 	$L__BB0_81;
	add.s64 	%rd237, %rd3, %rd7;
	add.s64 	%rd225, %rd269, %rd2;
	add.s64 	%rd224, %rd225, %rd2;
	shl.b64 	%rd113, %rd224, 3;
	add.s64 	%rd112, %rd237, %rd113;
	st.global.cs.v2.u32 [%rd112], {%r274,%r273};
$L__BB0_81:
	add.s64 	%rd248, %rd269, %rd2;
	add.s64 	%rd247, %rd248, %rd2;
	shr.u64 	%rd246, %rd8, 3;
	add.s64 	%rd245, %rd247, %rd2;
	setp.ge.u64 	%p78, %rd245, %rd246;
	@%p78 bra 	$L__BB0_83;
	add.s64 	%rd266, %rd269, %rd2;
	add.s64 	%rd265, %rd251, %rd2;
	add.s64 	%rd264, %rd255, %rd2;
	add.s64 	%rd236, %rd3, %rd7;
	shl.b64 	%rd115, %rd264, 3;
	add.s64 	%rd114, %rd236, %rd115;
	st.global.cs.v2.u32 [%rd114], {%r276,%r275};
$L__BB0_83:
	@%p42 bra 	$L__BB0_85;
	add.s64 	%rd235, %rd3, %rd7;
	shl.b64 	%rd117, %rd33, 3;
	add.s64 	%rd116, %rd235, %rd117;
	st.global.cs.v2.u32 [%rd116], {%r278,%r277};
$L__BB0_85:
	@%p43 bra 	$L__BB0_87;
	add.s64 	%rd234, %rd3, %rd7;
	shl.b64 	%rd119, %rd34, 3;
	add.s64 	%rd118, %rd234, %rd119;
	st.global.cs.v2.u32 [%rd118], {%r280,%r279};
$L__BB0_87:
	shr.u64 	%rd249, %rd8, 3;
	add.s64 	%rd269, %rd34, %rd2;
	setp.lt.u64 	%p50, %rd269, %rd249;
	@%p50 bra 	$L__BB0_63;
	bra.uni 	$L__BB0_115;
$L__BB0_88:
	shr.u64 	%rd36, %rd8, 4;
	setp.le.u64 	%p51, %rd36, %rd1;
	@%p51 bra 	$L__BB0_115;
	mov.u64 	%rd270, %rd1;
$L__BB0_90:
	shr.u64 	%rd175, %rd8, 4;
	setp.ge.u64 	%p52, %rd270, %rd175;
	@%p52 bra 	$L__BB0_92;
	add.s64 	%rd121, %rd4, %rd7;
	shl.b64 	%rd122, %rd270, 4;
	add.s64 	%rd120, %rd121, %rd122;
	ld.global.cs.v4.u32 {%r308,%r307,%r306,%r305}, [%rd120];
$L__BB0_92:
	shr.u64 	%rd176, %rd8, 4;
	add.s64 	%rd38, %rd270, %rd2;
	setp.ge.u64 	%p53, %rd38, %rd176;
	@%p53 bra 	$L__BB0_94;
	add.s64 	%rd192, %rd270, %rd2;
	add.s64 	%rd124, %rd4, %rd7;
	shl.b64 	%rd125, %rd192, 4;
	add.s64 	%rd123, %rd124, %rd125;
	ld.global.cs.v4.u32 {%r312,%r311,%r310,%r309}, [%rd123];
$L__BB0_94:
	add.s64 	%rd178, %rd270, %rd2;
	shr.u64 	%rd177, %rd8, 4;
	add.s64 	%rd39, %rd178, %rd2;
	setp.ge.u64 	%p54, %rd39, %rd177;
	@%p54 bra 	$L__BB0_96;
	add.s64 	%rd191, %rd270, %rd2;
	add.s64 	%rd190, %rd178, %rd2;
	add.s64 	%rd127, %rd4, %rd7;
	shl.b64 	%rd128, %rd190, 4;
	add.s64 	%rd126, %rd127, %rd128;
	ld.global.cs.v4.u32 {%r316,%r315,%r314,%r313}, [%rd126];
$L__BB0_96:
	add.s64 	%rd181, %rd178, %rd2;
	shr.u64 	%rd180, %rd8, 4;
	add.s64 	%rd179, %rd270, %rd2;
	add.s64 	%rd40, %rd181, %rd2;
	setp.ge.u64 	%p55, %rd40, %rd180;
	@%p55 bra 	$L__BB0_98;
	add.s64 	%rd189, %rd270, %rd2;
	add.s64 	%rd188, %rd178, %rd2;
	add.s64 	%rd187, %rd181, %rd2;
	add.s64 	%rd130, %rd4, %rd7;
	shl.b64 	%rd131, %rd187, 4;
	add.s64 	%rd129, %rd130, %rd131;
	ld.global.cs.v4.u32 {%r320,%r319,%r318,%r317}, [%rd129];
$L__BB0_98:
	add.s64 	%rd185, %rd181, %rd2;
	shr.u64 	%rd184, %rd8, 4;
	add.s64 	%rd183, %rd270, %rd2;
	add.s64 	%rd182, %rd178, %rd2;
	add.s64 	%rd41, %rd185, %rd2;
	setp.ge.u64 	%p56, %rd41, %rd184;
	@%p56 bra 	$L__BB0_100;
	add.s64 	%rd133, %rd4, %rd7;
	shl.b64 	%rd134, %rd41, 4;
	add.s64 	%rd132, %rd133, %rd134;
	ld.global.cs.v4.u32 {%r324,%r323,%r322,%r321}, [%rd132];
$L__BB0_100:
	shr.u64 	%rd186, %rd8, 4;
	add.s64 	%rd42, %rd41, %rd2;
	setp.ge.u64 	%p57, %rd42, %rd186;
	@%p57 bra 	$L__BB0_102;
	add.s64 	%rd136, %rd4, %rd7;
	shl.b64 	%rd137, %rd42, 4;
	add.s64 	%rd135, %rd136, %rd137;
	ld.global.cs.v4.u32 {%r328,%r327,%r326,%r325}, [%rd135];
$L__BB0_102:
	shr.u64 	%rd159, %rd8, 4;
	setp.ge.u64 	%p67, %rd270, %rd159;
	@%p67 bra 	$L__BB0_104;
	add.s64 	%rd139, %rd3, %rd7;
	shl.b64 	%rd140, %rd270, 4;
	add.s64 	%rd138, %rd139, %rd140;
	st.global.cs.v4.u32 [%rd138], {%r308,%r307,%r306,%r305};
$L__BB0_104:
	shr.u64 	%rd161, %rd8, 4;
	add.s64 	%rd160, %rd270, %rd2;
	setp.ge.u64 	%p68, %rd160, %rd161;
	@%p68 bra 	$L__BB0_106;
	add.s64 	%rd198, %rd270, %rd2;
	add.s64 	%rd142, %rd3, %rd7;
	shl.b64 	%rd143, %rd198, 4;
	add.s64 	%rd141, %rd142, %rd143;
	st.global.cs.v4.u32 [%rd141], {%r312,%r311,%r310,%r309};
$L__BB0_106:
	add.s64 	%rd164, %rd270, %rd2;
	shr.u64 	%rd163, %rd8, 4;
	add.s64 	%rd162, %rd164, %rd2;
	setp.ge.u64 	%p69, %rd162, %rd163;
	@%p69 bra 	$L__BB0_108;
	add.s64 	%rd197, %rd270, %rd2;
	add.s64 	%rd196, %rd178, %rd2;
	add.s64 	%rd145, %rd3, %rd7;
	shl.b64 	%rd146, %rd196, 4;
	add.s64 	%rd144, %rd145, %rd146;
	st.global.cs.v4.u32 [%rd144], {%r316,%r315,%r314,%r313};
$L__BB0_108:
	add.s64 	%rd168, %rd270, %rd2;
	add.s64 	%rd167, %rd168, %rd2;
	shr.u64 	%rd166, %rd8, 4;
	add.s64 	%rd165, %rd167, %rd2;
	setp.ge.u64 	%p70, %rd165, %rd166;
	@%p70 bra 	$L__BB0_110;
	add.s64 	%rd195, %rd270, %rd2;
	add.s64 	%rd194, %rd178, %rd2;
	add.s64 	%rd193, %rd181, %rd2;
	add.s64 	%rd148, %rd3, %rd7;
	shl.b64 	%rd149, %rd193, 4;
	add.s64 	%rd147, %rd148, %rd149;
	st.global.cs.v4.u32 [%rd147], {%r320,%r319,%r318,%r317};
$L__BB0_110:
	add.s64 	%rd173, %rd270, %rd2;
	add.s64 	%rd172, %rd173, %rd2;
	add.s64 	%rd171, %rd172, %rd2;
	shr.u64 	%rd170, %rd8, 4;
	add.s64 	%rd169, %rd171, %rd2;
	setp.ge.u64 	%p71, %rd169, %rd170;
	@%p71 bra 	$L__BB0_112;
	add.s64 	%rd151, %rd3, %rd7;
	shl.b64 	%rd152, %rd41, 4;
	add.s64 	%rd150, %rd151, %rd152;
	st.global.cs.v4.u32 [%rd150], {%r324,%r323,%r322,%r321};
$L__BB0_112:
	add.s64 	%rd204, %rd270, %rd2;
	add.s64 	%rd203, %rd204, %rd2;
	add.s64 	%rd202, %rd203, %rd2;
	add.s64 	%rd201, %rd202, %rd2;
	shr.u64 	%rd200, %rd8, 4;
	add.s64 	%rd199, %rd201, %rd2;
	setp.ge.u64 	%p72, %rd199, %rd200;
	@%p72 bra 	$L__BB0_114;
	add.s64 	%rd154, %rd3, %rd7;
	shl.b64 	%rd155, %rd42, 4;
	add.s64 	%rd153, %rd154, %rd155;
	st.global.cs.v4.u32 [%rd153], {%r328,%r327,%r326,%r325};
$L__BB0_114:
	shr.u64 	%rd174, %rd8, 4;
	add.s64 	%rd270, %rd42, %rd2;
	setp.lt.u64 	%p64, %rd270, %rd174;
	@%p64 bra 	$L__BB0_90;
	bra.uni 	$L__BB0_115;
$L__BB0_6:
	setp.eq.s32 	%p8, %r3, 4;
	add.s64 	%rd9, %rd3, %rd7;
	add.s64 	%rd10, %rd4, %rd7;
	@%p8 bra 	$L__BB0_34;
	bra.uni 	$L__BB0_7;
$L__BB0_34:
	shr.u64 	%rd18, %rd8, 2;
	setp.le.u64 	%p23, %rd18, %rd1;
	@%p23 bra 	$L__BB0_115;
	mov.u64 	%rd268, %rd1;
$L__BB0_36:
	shr.u64 	%rd210, %rd8, 2;
	setp.ge.u64 	%p24, %rd268, %rd210;
	@%p24 bra 	$L__BB0_38;
	shl.b64 	%rd73, %rd268, 2;
	add.s64 	%rd72, %rd10, %rd73;
	ld.global.cs.u32 %r251, [%rd72];
$L__BB0_38:
	shr.u64 	%rd211, %rd8, 2;
	add.s64 	%rd20, %rd268, %rd2;
	setp.ge.u64 	%p25, %rd20, %rd211;
	@%p25 bra 	$L__BB0_40;
	shl.b64 	%rd75, %rd20, 2;
	add.s64 	%rd74, %rd10, %rd75;
	ld.global.cs.u32 %r252, [%rd74];
$L__BB0_40:
	add.s64 	%rd213, %rd268, %rd2;
	shr.u64 	%rd212, %rd8, 2;
	add.s64 	%rd21, %rd213, %rd2;
	setp.ge.u64 	%p26, %rd21, %rd212;
	@%p26 bra 	$L__BB0_42;
	add.s64 	%rd220, %rd268, %rd2;
	add.s64 	%rd219, %rd213, %rd2;
	shl.b64 	%rd77, %rd219, 2;
	add.s64 	%rd76, %rd10, %rd77;
	ld.global.cs.u32 %r253, [%rd76];
$L__BB0_42:
	add.s64 	%rd216, %rd268, %rd2;
	add.s64 	%rd215, %rd213, %rd2;
	shr.u64 	%rd214, %rd8, 2;
	add.s64 	%rd22, %rd215, %rd2;
	setp.ge.u64 	%p27, %rd22, %rd214;
	@%p27 bra 	$L__BB0_44;
	shl.b64 	%rd79, %rd22, 2;
	add.s64 	%rd78, %rd10, %rd79;
	ld.global.cs.u32 %r254, [%rd78];
$L__BB0_44:
	shr.u64 	%rd217, %rd8, 2;
	add.s64 	%rd23, %rd22, %rd2;
	setp.ge.u64 	%p28, %rd23, %rd217;
	@%p28 bra 	$L__BB0_46;
	shl.b64 	%rd81, %rd23, 2;
	add.s64 	%rd80, %rd10, %rd81;
	ld.global.cs.u32 %r255, [%rd80];
$L__BB0_46:
	shr.u64 	%rd218, %rd8, 2;
	add.s64 	%rd24, %rd23, %rd2;
	setp.ge.u64 	%p29, %rd24, %rd218;
	@%p29 bra 	$L__BB0_48;
	shl.b64 	%rd83, %rd24, 2;
	add.s64 	%rd82, %rd10, %rd83;
	ld.global.cs.u32 %r256, [%rd82];
$L__BB0_48:
	shr.u64 	%rd205, %rd8, 2;
	setp.ge.u64 	%p73, %rd268, %rd205;
	@%p73 bra 	$L__BB0_50;
	shl.b64 	%rd85, %rd268, 2;
	add.s64 	%rd84, %rd9, %rd85;
	st.global.cs.u32 [%rd84], %r251;
$L__BB0_50:
	shr.u64 	%rd208, %rd8, 2;
	add.s64 	%rd207, %rd268, %rd2;
	setp.ge.u64 	%p74, %rd207, %rd208;
	@%p74 bra 	$L__BB0_52;
	add.s64 	%rd206, %rd268, %rd2;
	shl.b64 	%rd87, %rd206, 2;
	add.s64 	%rd86, %rd9, %rd87;
	st.global.cs.u32 [%rd86], %r252;
$L__BB0_52:
	@%p26 bra 	$L__BB0_54;
	add.s64 	%rd222, %rd268, %rd2;
	add.s64 	%rd221, %rd213, %rd2;
	shl.b64 	%rd89, %rd221, 2;
	add.s64 	%rd88, %rd9, %rd89;
	st.global.cs.u32 [%rd88], %r253;
$L__BB0_54:
	@%p27 bra 	$L__BB0_56;
	shl.b64 	%rd91, %rd22, 2;
	add.s64 	%rd90, %rd9, %rd91;
	st.global.cs.u32 [%rd90], %r254;
$L__BB0_56:
	@%p28 bra 	$L__BB0_58;
	shl.b64 	%rd93, %rd23, 2;
	add.s64 	%rd92, %rd9, %rd93;
	st.global.cs.u32 [%rd92], %r255;
$L__BB0_58:
	@%p29 bra 	$L__BB0_60;
	shl.b64 	%rd95, %rd24, 2;
	add.s64 	%rd94, %rd9, %rd95;
	st.global.cs.u32 [%rd94], %r256;
$L__BB0_60:
	shr.u64 	%rd209, %rd8, 2;
	add.s64 	%rd268, %rd24, %rd2;
	setp.lt.u64 	%p36, %rd268, %rd209;
	@%p36 bra 	$L__BB0_36;
	bra.uni 	$L__BB0_115;
$L__BB0_7:
	setp.le.u64 	%p9, %rd8, %rd1;
	@%p9 bra 	$L__BB0_115;
	mov.u64 	%rd267, %rd1;
$L__BB0_9:
	setp.ge.u64 	%p10, %rd267, %rd8;
	@%p10 bra 	$L__BB0_11;
	add.s64 	%rd60, %rd10, %rd267;
	ld.global.cs.u8 %r137, [%rd60];
	cvt.u16.u32 	%rs57, %r137;
$L__BB0_11:
	add.s64 	%rd12, %rd267, %rd2;
	setp.ge.u64 	%p11, %rd12, %rd8;
	@%p11 bra 	$L__BB0_13;
	add.s64 	%rd61, %rd10, %rd12;
	ld.global.cs.u8 %r138, [%rd61];
	cvt.u16.u32 	%rs56, %r138;
$L__BB0_13:
	add.s64 	%rd13, %rd12, %rd2;
	setp.ge.u64 	%p12, %rd13, %rd8;
	@%p12 bra 	$L__BB0_15;
	add.s64 	%rd62, %rd10, %rd13;
	ld.global.cs.u8 %r139, [%rd62];
	cvt.u16.u32 	%rs55, %r139;
$L__BB0_15:
	add.s64 	%rd14, %rd13, %rd2;
	setp.ge.u64 	%p13, %rd14, %rd8;
	@%p13 bra 	$L__BB0_17;
	add.s64 	%rd63, %rd10, %rd14;
	ld.global.cs.u8 %r140, [%rd63];
	cvt.u16.u32 	%rs54, %r140;
$L__BB0_17:
	add.s64 	%rd15, %rd14, %rd2;
	setp.ge.u64 	%p14, %rd15, %rd8;
	@%p14 bra 	$L__BB0_19;
	add.s64 	%rd64, %rd10, %rd15;
	ld.global.cs.u8 %r141, [%rd64];
	cvt.u16.u32 	%rs53, %r141;
$L__BB0_19:
	add.s64 	%rd16, %rd15, %rd2;
	setp.ge.u64 	%p15, %rd16, %rd8;
	@%p15 bra 	$L__BB0_21;
	add.s64 	%rd65, %rd10, %rd16;
	ld.global.cs.u8 %r142, [%rd65];
	cvt.u16.u32 	%rs52, %r142;
$L__BB0_21:
	@%p10 bra 	$L__BB0_23;
	add.s64 	%rd66, %rd9, %rd267;
	cvt.u32.u16 	%r144, %rs57;
	and.b32  	%r143, %r144, 255;
	st.global.cs.u8 [%rd66], %r143;
$L__BB0_23:
	@%p11 bra 	$L__BB0_25;
	add.s64 	%rd67, %rd9, %rd12;
	cvt.u32.u16 	%r146, %rs56;
	and.b32  	%r145, %r146, 255;
	st.global.cs.u8 [%rd67], %r145;
$L__BB0_25:
	@%p12 bra 	$L__BB0_27;
	add.s64 	%rd68, %rd9, %rd13;
	cvt.u32.u16 	%r148, %rs55;
	and.b32  	%r147, %r148, 255;
	st.global.cs.u8 [%rd68], %r147;
$L__BB0_27:
	@%p13 bra 	$L__BB0_29;
	add.s64 	%rd69, %rd9, %rd14;
	cvt.u32.u16 	%r150, %rs54;
	and.b32  	%r149, %r150, 255;
	st.global.cs.u8 [%rd69], %r149;
$L__BB0_29:
	@%p14 bra 	$L__BB0_31;
	add.s64 	%rd70, %rd9, %rd15;
	cvt.u32.u16 	%r152, %rs53;
	and.b32  	%r151, %r152, 255;
	st.global.cs.u8 [%rd70], %r151;
$L__BB0_31:
	@%p15 bra 	$L__BB0_33;
	add.s64 	%rd71, %rd9, %rd16;
	cvt.u32.u16 	%r154, %rs52;
	and.b32  	%r153, %r154, 255;
	st.global.cs.u8 [%rd71], %r153;
$L__BB0_33:
	add.s64 	%rd267, %rd16, %rd2;
	setp.lt.u64 	%p22, %rd267, %rd8;
	@%p22 bra 	$L__BB0_9;
$L__BB0_115:
	add.s64 	%rd156, %rd7, %rd1;
	add.s64 	%rd44, %rd156, %rd8;
	setp.ge.u64 	%p65, %rd44, %rd6;
	@%p65 bra 	$L__BB0_117;
	add.s64 	%rd157, %rd4, %rd44;
	ld.u8 	%rs33, [%rd157];
	add.s64 	%rd158, %rd3, %rd44;
	st.u8 	[%rd158], %rs33;
$L__BB0_117:
	ld.param.u32 	%r243, [tryst_gather_param_1];
	mov.u32 	%r242, %nctaid.x;
	add.s32 	%r244, %r244, %r242;
	setp.lt.u32 	%p66, %r244, %r243;
	@%p66 bra 	$L__BB0_2;
$L__BB0_118:
	ret;
}
.visible .entry tryst_copy(
	.param .align 8 .b8 tryst_copy_param_0[24],
	.param .u64 tryst_copy_param_1,
	.param .u64 tryst_copy_param_2
)
.maxntid 512, 1, 1
{
	.reg .pred 	%p<69>;
	.reg .b16 	%rs<34>;
	.reg .b32 	%r<338>;
	.reg .b64 	%rd<182>;
	ld.param.u64 	%rd51, [tryst_copy_param_1];
	ld.param.u64 	%rd52, [tryst_copy_param_2];
	ld.param.u64 	%rd6, [tryst_copy_param_0+16];
	ld.param.u64 	%rd3, [tryst_copy_param_0+8];
	ld.param.u64 	%rd1, [tryst_copy_param_0];
	cvta.to.global.u64 	%rd2, %rd1;
	cvta.to.global.u64 	%rd4, %rd3;
	xor.b64  	%rd53, %rd1, %rd3;
	and.b64  	%rd5, %rd53, 15;
	setp.eq.s64 	%p1, %rd5, 0;
	setp.eq.s64 	%p2, %rd5, 8;
	and.b64  	%rd54, %rd53, 3;
	setp.eq.s64 	%p3, %rd54, 0;
	selp.b32 	%r128, 4, 1, %p3;
	selp.b32 	%r129, 8, %r128, %p2;
	selp.b32 	%r1, 16, %r129, %p1;
	cvt.u64.u32 	%rd55, %r1;
	add.s32 	%r130, %r1, -1;
	cvt.u64.u32 	%rd56, %r130;
	and.b64  	%rd57, %rd1, %rd56;
	sub.s64 	%rd58, %rd55, %rd57;
	and.b64  	%rd59, %rd58, %rd56;
	min.u64 	%rd7, %rd59, %rd6;
	sub.s64 	%rd60, %rd6, %rd7;
	neg.s64 	%rd61, %rd55;
	and.b64  	%rd8, %rd60, %rd61;
	mov.u32 	%r131, %tid.x;
	cvt.u64.u32 	%rd9, %r131;
	setp.le.u64 	%p4, %rd7, %rd9;
	@%p4 bra 	$L__BB1_2;
	add.s64 	%rd62, %rd4, %rd9;
	ld.global.u8 	%rs19, [%rd62];
	add.s64 	%rd63, %rd2, %rd9;
	st.global.u8 	[%rd63], %rs19;
$L__BB1_2:
	@%p1 bra 	$L__BB1_86;
	setp.eq.s32 	%p6, %r1, 8;
	@%p6 bra 	$L__BB1_59;
	bra.uni 	$L__BB1_4;
$L__BB1_59:
	shr.u64 	%rd29, %rd8, 3;
	setp.le.u64 	%p36, %rd29, %rd9;
	@%p36 bra 	$L__BB1_113;
	add.s64 	%rd30, %rd1, %rd7;
	add.s64 	%rd31, %rd3, %rd7;
	mov.u32 	%r166, %ntid.x;
	cvt.u64.u32 	%rd32, %r166;
$L__BB1_61:
	setp.ge.u64 	%p37, %rd9, %rd29;
	@%p37 bra 	$L__BB1_63;
	shl.b64 	%rd101, %rd9, 3;
	add.s64 	%rd100, %rd31, %rd101;
	ld.global.cs.v2.u32 {%r279,%r278}, [%rd100];
$L__BB1_63:
	add.s64 	%rd34, %rd9, %rd32;
	setp.ge.u64 	%p38, %rd34, %rd29;
	@%p38 bra 	$L__BB1_65;
	shl.b64 	%rd103, %rd34, 3;
	add.s64 	%rd102, %rd31, %rd103;
	ld.global.cs.v2.u32 {%r281,%r280}, [%rd102];
$L__BB1_65:
	add.s64 	%rd35, %rd34, %rd32;
	setp.ge.u64 	%p39, %rd35, %rd29;
	@%p39 bra 	$L__BB1_67;
	shl.b64 	%rd105, %rd35, 3;
	add.s64 	%rd104, %rd31, %rd105;
	ld.global.cs.v2.u32 {%r283,%r282}, [%rd104];
$L__BB1_67:
	add.s64 	%rd36, %rd35, %rd32;
	setp.ge.u64 	%p40, %rd36, %rd29;
	@%p40 bra 	$L__BB1_69;
	shl.b64 	%rd107, %rd36, 3;
	add.s64 	%rd106, %rd31, %rd107;
	ld.global.cs.v2.u32 {%r285,%r284}, [%rd106];
$L__BB1_69:
	add.s64 	%rd37, %rd36, %rd32;
	setp.ge.u64 	%p41, %rd37, %rd29;
	@%p41 bra 	$L__BB1_71;
	shl.b64 	%rd109, %rd37, 3;
	add.s64 	%rd108, %rd31, %rd109;
	ld.global.cs.v2.u32 {%r287,%r286}, [%rd108];
$L__BB1_71:
	add.s64 	%rd38, %rd37, %rd32;
	setp.ge.u64 	%p42, %rd38, %rd29;
	@%p42 bra 	$L__BB1_73;
	shl.b64 	%rd111, %rd38, 3;
	add.s64 	%rd110, %rd31, %rd111;
	ld.global.cs.v2.u32 {%r289,%r288}, [%rd110];
$L__BB1_73:
	@%p37 bra 	$L__BB1_75;
	shl.b64 	%rd113, %rd9, 3;
	add.s64 	%rd112, %rd30, %rd113;
	st.global.cs.v2.u32 [%rd112], {%r279,%r278};
$L__BB1_75:
	@%p38 bra 	$L__BB1_77;
	shl.b64 	%rd115, %rd34, 3;
	add.s64 	%rd114, %rd30, %rd115;
	st.global.cs.v2.u32 [%rd114], {%r281,%r280};
$L__BB1_77:
	@%p39 bra 	$L__BB1_79;
	shl.b64 	%rd117, %rd35, 3;
	add.s64 	%rd116, %rd30, %rd117;
	st.global.cs.v2.u32 [%rd116], {%r283,%r282};
$L__BB1_79:
	@%p40 bra 	$L__BB1_81;
	shl.b64 	%rd119, %rd36, 3;
	add.s64 	%rd118, %rd30, %rd119;
	st.global.cs.v2.u32 [%rd118], {%r285,%r284};
$L__BB1_81:
	@%p41 bra 	$L__BB1_83;
	shl.b64 	%rd121, %rd37, 3;
	add.s64 	%rd120, %rd30, %rd121;
	st.global.cs.v2.u32 [%rd120], {%r287,%r286};
$L__BB1_83:
	@%p42 bra 	$L__BB1_85;
	shl.b64 	%rd123, %rd38, 3;
	add.s64 	%rd122, %rd30, %rd123;
	st.global.cs.v2.u32 [%rd122], {%r289,%r288};
$L__BB1_85:
	add.s64 	%rd9, %rd38, %rd32;
	setp.lt.u64 	%p49, %rd9, %rd29;
	@%p49 bra 	$L__BB1_61;
	bra.uni 	$L__BB1_113;
$L__BB1_86:
	shr.u64 	%rd40, %rd8, 4;
	setp.le.u64 	%p50, %rd40, %rd9;
	@%p50 bra 	$L__BB1_113;
	add.s64 	%rd41, %rd1, %rd7;
	add.s64 	%rd42, %rd3, %rd7;
$L__BB1_88:
	setp.ge.u64 	%p51, %rd9, %rd40;
	@%p51 bra 	$L__BB1_90;
	shl.b64 	%rd125, %rd9, 4;
	add.s64 	%rd124, %rd42, %rd125;
	ld.global.cs.v4.u32 {%r317,%r316,%r315,%r314}, [%rd124];
$L__BB1_90:
	mov.u32 	%r196, %ntid.x;
	cvt.u64.u32 	%rd126, %r196;
	add.s64 	%rd44, %rd9, %rd126;
	setp.ge.u64 	%p52, %rd44, %rd40;
	@%p52 bra 	$L__BB1_92;
	shl.b64 	%rd128, %rd44, 4;
	add.s64 	%rd127, %rd42, %rd128;
	ld.global.cs.v4.u32 {%r321,%r320,%r319,%r318}, [%rd127];
$L__BB1_92:
	add.s64 	%rd45, %rd44, %rd126;
	setp.ge.u64 	%p53, %rd45, %rd40;
	@%p53 bra 	$L__BB1_94;
	shl.b64 	%rd131, %rd45, 4;
	add.s64 	%rd130, %rd42, %rd131;
	ld.global.cs.v4.u32 {%r325,%r324,%r323,%r322}, [%rd130];
$L__BB1_94:
	add.s64 	%rd46, %rd45, %rd126;
	setp.ge.u64 	%p54, %rd46, %rd40;
	@%p54 bra 	$L__BB1_96;
	shl.b64 	%rd134, %rd46, 4;
	add.s64 	%rd133, %rd42, %rd134;
	ld.global.cs.v4.u32 {%r329,%r328,%r327,%r326}, [%rd133];
$L__BB1_96:
	add.s64 	%rd47, %rd46, %rd126;
	setp.ge.u64 	%p55, %rd47, %rd40;
	@%p55 bra 	$L__BB1_98;
	shl.b64 	%rd137, %rd47, 4;
	add.s64 	%rd136, %rd42, %rd137;
	ld.global.cs.v4.u32 {%r333,%r332,%r331,%r330}, [%rd136];
$L__BB1_98:
	add.s64 	%rd48, %rd47, %rd126;
	setp.ge.u64 	%p56, %rd48, %rd40;
	@%p56 bra 	$L__BB1_100;
	shl.b64 	%rd140, %rd48, 4;
	add.s64 	%rd139, %rd42, %rd140;
	ld.global.cs.v4.u32 {%r337,%r336,%r335,%r334}, [%rd139];
$L__BB1_100:
	@%p51 bra 	$L__BB1_102;
	shl.b64 	%rd142, %rd9, 4;
	add.s64 	%rd141, %rd41, %rd142;
	st.global.cs.v4.u32 [%rd141], {%r317,%r316,%r315,%r314};
$L__BB1_102:
	@%p52 bra 	$L__BB1_104;
	shl.b64 	%rd144, %rd44, 4;
	add.s64 	%rd143, %rd41, %rd144;
	st.global.cs.v4.u32 [%rd143], {%r321,%r320,%r319,%r318};
$L__BB1_104:
	@%p53 bra 	$L__BB1_106;
	shl.b64 	%rd146, %rd45, 4;
	add.s64 	%rd145, %rd41, %rd146;
	st.global.cs.v4.u32 [%rd145], {%r325,%r324,%r323,%r322};
$L__BB1_106:
	@%p54 bra 	$L__BB1_108;
	shl.b64 	%rd148, %rd46, 4;
	add.s64 	%rd147, %rd41, %rd148;
	st.global.cs.v4.u32 [%rd147], {%r329,%r328,%r327,%r326};
$L__BB1_108:
	@%p55 bra 	$L__BB1_110;
	shl.b64 	%rd150, %rd47, 4;
	add.s64 	%rd149, %rd41, %rd150;
	st.global.cs.v4.u32 [%rd149], {%r333,%r332,%r331,%r330};
$L__BB1_110:
	@%p56 bra 	$L__BB1_112;
	shl.b64 	%rd152, %rd48, 4;
	add.s64 	%rd151, %rd41, %rd152;
	st.global.cs.v4.u32 [%rd151], {%r337,%r336,%r335,%r334};
$L__BB1_112:
	add.s64 	%rd9, %rd48, %rd126;
	setp.lt.u64 	%p63, %rd9, %rd40;
	@%p63 bra 	$L__BB1_88;
	bra.uni 	$L__BB1_113;
$L__BB1_4:
	add.s64 	%rd10, %rd1, %rd7;
	add.s64 	%rd11, %rd3, %rd7;
	setp.eq.s32 	%p7, %r1, 4;
	@%p7 bra 	$L__BB1_32;
	bra.uni 	$L__BB1_5;
$L__BB1_32:
	shr.u64 	%rd20, %rd8, 2;
	setp.le.u64 	%p22, %rd20, %rd9;
	@%p22 bra 	$L__BB1_113;
	mov.u32 	%r152, %ntid.x;
	cvt.u64.u32 	%rd21, %r152;
$L__BB1_34:
	setp.ge.u64 	%p23, %rd9, %rd20;
	@%p23 bra 	$L__BB1_36;
	shl.b64 	%rd77, %rd9, 2;
	add.s64 	%rd76, %rd11, %rd77;
	ld.global.cs.u32 %r260, [%rd76];
$L__BB1_36:
	add.s64 	%rd23, %rd9, %rd21;
	setp.ge.u64 	%p24, %rd23, %rd20;
	@%p24 bra 	$L__BB1_38;
	shl.b64 	%rd79, %rd23, 2;
	add.s64 	%rd78, %rd11, %rd79;
	ld.global.cs.u32 %r261, [%rd78];
$L__BB1_38:
	add.s64 	%rd24, %rd23, %rd21;
	setp.ge.u64 	%p25, %rd24, %rd20;
	@%p25 bra 	$L__BB1_40;
	shl.b64 	%rd81, %rd24, 2;
	add.s64 	%rd80, %rd11, %rd81;
	ld.global.cs.u32 %r262, [%rd80];
$L__BB1_40:
	add.s64 	%rd25, %rd24, %rd21;
	setp.ge.u64 	%p26, %rd25, %rd20;
	@%p26 bra 	$L__BB1_42;
	shl.b64 	%rd83, %rd25, 2;
	add.s64 	%rd82, %rd11, %rd83;
	ld.global.cs.u32 %r263, [%rd82];
$L__BB1_42:
	add.s64 	%rd26, %rd25, %rd21;
	setp.ge.u64 	%p27, %rd26, %rd20;
	@%p27 bra 	$L__BB1_44;
	shl.b64 	%rd85, %rd26, 2;
	add.s64 	%rd84, %rd11, %rd85;
	ld.global.cs.u32 %r264, [%rd84];
$L__BB1_44:
	add.s64 	%rd27, %rd26, %rd21;
	setp.ge.u64 	%p28, %rd27, %rd20;
	@%p28 bra 	$L__BB1_46;
	shl.b64 	%rd87, %rd27, 2;
	add.s64 	%rd86, %rd11, %rd87;
	ld.global.cs.u32 %r265, [%rd86];
$L__BB1_46:
	@%p23 bra 	$L__BB1_48;
	shl.b64 	%rd89, %rd9, 2;
	add.s64 	%rd88, %rd10, %rd89;
	st.global.cs.u32 [%rd88], %r260;
$L__BB1_48:
	@%p24 bra 	$L__BB1_50;
	shl.b64 	%rd91, %rd23, 2;
	add.s64 	%rd90, %rd10, %rd91;
	st.global.cs.u32 [%rd90], %r261;
$L__BB1_50:
	@%p25 bra 	$L__BB1_52;
	shl.b64 	%rd93, %rd24, 2;
	add.s64 	%rd92, %rd10, %rd93;
	st.global.cs.u32 [%rd92], %r262;
$L__BB1_52:
	@%p26 bra 	$L__BB1_54;
	shl.b64 	%rd95, %rd25, 2;
	add.s64 	%rd94, %rd10, %rd95;
	st.global.cs.u32 [%rd94], %r263;
$L__BB1_54:
	@%p27 bra 	$L__BB1_56;
	shl.b64 	%rd97, %rd26, 2;
	add.s64 	%rd96, %rd10, %rd97;
	st.global.cs.u32 [%rd96], %r264;
$L__BB1_56:
	@%p28 bra 	$L__BB1_58;
	shl.b64 	%rd99, %rd27, 2;
	add.s64 	%rd98, %rd10, %rd99;
	st.global.cs.u32 [%rd98], %r265;
$L__BB1_58:
	add.s64 	%rd9, %rd27, %rd21;
	setp.lt.u64 	%p35, %rd9, %rd20;
	@%p35 bra 	$L__BB1_34;
	bra.uni 	$L__BB1_113;
$L__BB1_5:
	setp.le.u64 	%p8, %rd8, %rd9;
	@%p8 bra 	$L__BB1_113;
	mov.u32 	%r132, %ntid.x;
	cvt.u64.u32 	%rd12, %r132;
$L__BB1_7:
	setp.ge.u64 	%p9, %rd9, %rd8;
	@%p9 bra 	$L__BB1_9;
	add.s64 	%rd64, %rd11, %rd9;
	ld.global.cs.u8 %r133, [%rd64];
	cvt.u16.u32 	%rs28, %r133;
$L__BB1_9:
	add.s64 	%rd14, %rd9, %rd12;
	setp.ge.u64 	%p10, %rd14, %rd8;
	@%p10 bra 	$L__BB1_11;
	add.s64 	%rd65, %rd11, %rd14;
	ld.global.cs.u8 %r134, [%rd65];
	cvt.u16.u32 	%rs29, %r134;
$L__BB1_11:
	add.s64 	%rd15, %rd14, %rd12;
	setp.ge.u64 	%p11, %rd15, %rd8;
	@%p11 bra 	$L__BB1_13;
	add.s64 	%rd66, %rd11, %rd15;
	ld.global.cs.u8 %r135, [%rd66];
	cvt.u16.u32 	%rs30, %r135;
$L__BB1_13:
	add.s64 	%rd16, %rd15, %rd12;
	setp.ge.u64 	%p12, %rd16, %rd8;
	@%p12 bra 	$L__BB1_15;
	add.s64 	%rd67, %rd11, %rd16;
	ld.global.cs.u8 %r136, [%rd67];
	cvt.u16.u32 	%rs31, %r136;
$L__BB1_15:
	add.s64 	%rd17, %rd16, %rd12;
	setp.ge.u64 	%p13, %rd17, %rd8;
	@%p13 bra 	$L__BB1_17;
	add.s64 	%rd68, %rd11, %rd17;
	ld.global.cs.u8 %r137, [%rd68];
	cvt.u16.u32 	%rs32, %r137;
$L__BB1_17:
	add.s64 	%rd18, %rd17, %rd12;
	setp.ge.u64 	%p14, %rd18, %rd8;
	@%p14 bra 	$L__BB1_19;
	add.s64 	%rd69, %rd11, %rd18;
	ld.global.cs.u8 %r138, [%rd69];
	cvt.u16.u32 	%rs33, %r138;
$L__BB1_19:
	@%p9 bra 	$L__BB1_21;
	add.s64 	%rd70, %rd10, %rd9;
	cvt.u32.u16 	%r140, %rs28;
	and.b32  	%r139, %r140, 255;
	st.global.cs.u8 [%rd70], %r139;
$L__BB1_21:
	@%p10 bra 	$L__BB1_23;
	add.s64 	%rd71, %rd10, %rd14;
	cvt.u32.u16 	%r142, %rs29;
	and.b32  	%r141, %r142, 255;
	st.global.cs.u8 [%rd71], %r141;
$L__BB1_23:
	@%p11 bra 	$L__BB1_25;
	add.s64 	%rd72, %rd10, %rd15;
	cvt.u32.u16 	%r144, %rs30;
	and.b32  	%r143, %r144, 255;
	st.global.cs.u8 [%rd72], %r143;
$L__BB1_25:
	@%p12 bra 	$L__BB1_27;
	add.s64 	%rd73, %rd10, %rd16;
	cvt.u32.u16 	%r146, %rs31;
	and.b32  	%r145, %r146, 255;
	st.global.cs.u8 [%rd73], %r145;
$L__BB1_27:
	@%p13 bra 	$L__BB1_29;
	add.s64 	%rd74, %rd10, %rd17;
	cvt.u32.u16 	%r148, %rs32;
	and.b32  	%r147, %r148, 255;
	st.global.cs.u8 [%rd74], %r147;
$L__BB1_29:
	@%p14 bra 	$L__BB1_31;
	add.s64 	%rd75, %rd10, %rd18;
	cvt.u32.u16 	%r150, %rs33;
	and.b32  	%r149, %r150, 255;
	st.global.cs.u8 [%rd75], %r149;
$L__BB1_31:
	add.s64 	%rd9, %rd18, %rd12;
	setp.lt.u64 	%p21, %rd9, %rd8;
	@%p21 bra 	$L__BB1_7;
$L__BB1_113:
	mov.u32 	%r252, %tid.x;
	ld.param.u64 	%rd173, [tryst_copy_param_0];
	ld.param.u64 	%rd172, [tryst_copy_param_0+8];
	xor.b64  	%rd171, %rd173, %rd172;
	and.b64  	%rd170, %rd171, 3;
	setp.eq.s64 	%p68, %rd170, 0;
	and.b64  	%rd169, %rd171, 15;
	selp.b32 	%r251, 4, 1, %p68;
	setp.eq.s64 	%p67, %rd169, 8;
	setp.eq.s64 	%p66, %rd169, 0;
	selp.b32 	%r250, 8, %r251, %p67;
	selp.b32 	%r249, 16, %r250, %p66;
	add.s32 	%r248, %r249, -1;
	cvt.u64.u32 	%rd168, %r248;
	and.b64  	%rd167, %rd173, %rd168;
	cvt.u64.u32 	%rd166, %r249;
	sub.s64 	%rd165, %rd166, %rd167;
	ld.param.u64 	%rd164, [tryst_copy_param_0+16];
	and.b64  	%rd163, %rd165, %rd168;
	min.u64 	%rd162, %rd163, %rd164;
	neg.s64 	%rd161, %rd166;
	sub.s64 	%rd160, %rd164, %rd162;
	and.b64  	%rd159, %rd160, %rd161;
	cvt.u64.u32 	%rd154, %r252;
	add.s64 	%rd155, %rd162, %rd154;
	add.s64 	%rd50, %rd155, %rd159;
	setp.ge.u64 	%p64, %rd50, %rd164;
	@%p64 bra 	$L__BB1_115;
	ld.param.u64 	%rd177, [tryst_copy_param_0];
	cvta.to.global.u64 	%rd176, %rd177;
	ld.param.u64 	%rd175, [tryst_copy_param_0+8];
	cvta.to.global.u64 	%rd174, %rd175;
	add.s64 	%rd156, %rd174, %rd50;
	ld.global.u8 	%rs21, [%rd156];
	add.s64 	%rd157, %rd176, %rd50;
	st.global.u8 	[%rd157], %rs21;
$L__BB1_115:
	mov.u32 	%r253, %tid.x;
	bar.sync 	0;
	setp.ne.s32 	%p65, %r253, 0;
	@%p65 bra 	$L__BB1_117;
	membar.sys;
	cvta.to.global.u64 	%rd158, %rd51;
	st.volatile.global.u64 	[%rd158], %rd52;
$L__BB1_117:
	ret;
}
)ptx";

}  // namespace tryst

#endif  // TRYST_GPU_GATHER_PTX_H_
