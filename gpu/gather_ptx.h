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
	.reg .b16 	%rs<56>;
	.reg .b32 	%r<331>;
	.reg .b64 	%rd<271>;
	ld.param.u64 	%rd45, [tryst_gather_param_0];
	ld.param.u32 	%r131, [tryst_gather_param_1];
	mov.u32 	%r246, %ctaid.x;
	setp.ge.u32 	%p1, %r246, %r131;
	@%p1 bra 	$L__BB0_118;
	mov.u32 	%r132, %tid.x;
	cvt.u64.u32 	%rd1, %r132;
	mov.u32 	%r133, %ntid.x;
	cvt.u64.u32 	%rd2, %r133;
	cvta.to.global.u64 	%rd46, %rd45;
$L__BB0_2:
	mul.wide.u32 	%rd47, %r246, 24;
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
	ld.global.cs.u8 %r137, [%rd58];
	add.s64 	%rd59, %rd3, %rd1;
	st.u8 	[%rd59], %r137;
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
	ld.global.cs.v2.u32 {%r272,%r271}, [%rd96];
$L__BB0_65:
	shr.u64 	%rd229, %rd8, 3;
	add.s64 	%rd30, %rd269, %rd2;
	setp.ge.u64 	%p39, %rd30, %rd229;
	@%p39 bra 	$L__BB0_67;
	add.s64 	%rd232, %rd4, %rd7;
	shl.b64 	%rd99, %rd30, 3;
	add.s64 	%rd98, %rd232, %rd99;
	ld.global.cs.v2.u32 {%r274,%r273}, [%rd98];
$L__BB0_67:
	shr.u64 	%rd252, %rd8, 3;
	add.s64 	%rd251, %rd269, %rd2;
	add.s64 	%rd31, %rd251, %rd2;
	setp.ge.u64 	%p40, %rd31, %rd252;
	@%p40 bra 	$L__BB0_69;
	add.s64 	%rd231, %rd4, %rd7;
	shl.b64 	%rd101, %rd31, 3;
	add.s64 	%rd100, %rd231, %rd101;
	ld.global.cs.v2.u32 {%r276,%r275}, [%rd100];
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
	ld.global.cs.v2.u32 {%r278,%r277}, [%rd102];
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
	ld.global.cs.v2.u32 {%r280,%r279}, [%rd104];
$L__BB0_73:
	shr.u64 	%rd260, %rd8, 3;
	add.s64 	%rd34, %rd33, %rd2;
	setp.ge.u64 	%p43, %rd34, %rd260;
	@%p43 bra 	$L__BB0_75;
	add.s64 	%rd240, %rd4, %rd7;
	shl.b64 	%rd107, %rd34, 3;
	add.s64 	%rd106, %rd240, %rd107;
	ld.global.cs.v2.u32 {%r282,%r281}, [%rd106];
$L__BB0_75:
	shr.u64 	%rd223, %rd8, 3;
	setp.ge.u64 	%p75, %rd269, %rd223;
	@%p75 bra 	$L__BB0_77;
	add.s64 	%rd239, %rd3, %rd7;
	shl.b64 	%rd109, %rd269, 3;
	add.s64 	%rd108, %rd239, %rd109;
	st.global.cs.v2.u32 [%rd108], {%r272,%r271};
$L__BB0_77:
	shr.u64 	%rd228, %rd8, 3;
	add.s64 	%rd227, %rd269, %rd2;
	setp.ge.u64 	%p76, %rd227, %rd228;
	@%p76 bra 	$L__BB0_79;
	add.s64 	%rd238, %rd3, %rd7;
	add.s64 	%rd226, %rd269, %rd2;
	shl.b64 	%rd111, %rd226, 3;
	add.s64 	%rd110, %rd238, %rd111;
	st.global.cs.v2.u32 [%rd110], {%r274,%r273};
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
	st.global.cs.v2.u32 [%rd112], {%r276,%r275};
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
	st.global.cs.v2.u32 [%rd114], {%r278,%r277};
$L__BB0_83:
	@%p42 bra 	$L__BB0_85;
	add.s64 	%rd235, %rd3, %rd7;
	shl.b64 	%rd117, %rd33, 3;
	add.s64 	%rd116, %rd235, %rd117;
	st.global.cs.v2.u32 [%rd116], {%r280,%r279};
$L__BB0_85:
	@%p43 bra 	$L__BB0_87;
	add.s64 	%rd234, %rd3, %rd7;
	shl.b64 	%rd119, %rd34, 3;
	add.s64 	%rd118, %rd234, %rd119;
	st.global.cs.v2.u32 [%rd118], {%r282,%r281};
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
	ld.global.cs.v4.u32 {%r310,%r309,%r308,%r307}, [%rd120];
$L__BB0_92:
	shr.u64 	%rd176, %rd8, 4;
	add.s64 	%rd38, %rd270, %rd2;
	setp.ge.u64 	%p53, %rd38, %rd176;
	@%p53 bra 	$L__BB0_94;
	add.s64 	%rd192, %rd270, %rd2;
	add.s64 	%rd124, %rd4, %rd7;
	shl.b64 	%rd125, %rd192, 4;
	add.s64 	%rd123, %rd124, %rd125;
	ld.global.cs.v4.u32 {%r314,%r313,%r312,%r311}, [%rd123];
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
	ld.global.cs.v4.u32 {%r318,%r317,%r316,%r315}, [%rd126];
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
	ld.global.cs.v4.u32 {%r322,%r321,%r320,%r319}, [%rd129];
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
	ld.global.cs.v4.u32 {%r326,%r325,%r324,%r323}, [%rd132];
$L__BB0_100:
	shr.u64 	%rd186, %rd8, 4;
	add.s64 	%rd42, %rd41, %rd2;
	setp.ge.u64 	%p57, %rd42, %rd186;
	@%p57 bra 	$L__BB0_102;
	add.s64 	%rd136, %rd4, %rd7;
	shl.b64 	%rd137, %rd42, 4;
	add.s64 	%rd135, %rd136, %rd137;
	ld.global.cs.v4.u32 {%r330,%r329,%r328,%r327}, [%rd135];
$L__BB0_102:
	shr.u64 	%rd159, %rd8, 4;
	setp.ge.u64 	%p67, %rd270, %rd159;
	@%p67 bra 	$L__BB0_104;
	add.s64 	%rd139, %rd3, %rd7;
	shl.b64 	%rd140, %rd270, 4;
	add.s64 	%rd138, %rd139, %rd140;
	st.global.cs.v4.u32 [%rd138], {%r310,%r309,%r308,%r307};
$L__BB0_104:
	shr.u64 	%rd161, %rd8, 4;
	add.s64 	%rd160, %rd270, %rd2;
	setp.ge.u64 	%p68, %rd160, %rd161;
	@%p68 bra 	$L__BB0_106;
	add.s64 	%rd198, %rd270, %rd2;
	add.s64 	%rd142, %rd3, %rd7;
	shl.b64 	%rd143, %rd198, 4;
	add.s64 	%rd141, %rd142, %rd143;
	st.global.cs.v4.u32 [%rd141], {%r314,%r313,%r312,%r311};
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
	st.global.cs.v4.u32 [%rd144], {%r318,%r317,%r316,%r315};
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
	st.global.cs.v4.u32 [%rd147], {%r322,%r321,%r320,%r319};
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
	st.global.cs.v4.u32 [%rd150], {%r326,%r325,%r324,%r323};
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
	st.global.cs.v4.u32 [%rd153], {%r330,%r329,%r328,%r327};
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
	ld.global.cs.u32 %r253, [%rd72];
$L__BB0_38:
	shr.u64 	%rd211, %rd8, 2;
	add.s64 	%rd20, %rd268, %rd2;
	setp.ge.u64 	%p25, %rd20, %rd211;
	@%p25 bra 	$L__BB0_40;
	shl.b64 	%rd75, %rd20, 2;
	add.s64 	%rd74, %rd10, %rd75;
	ld.global.cs.u32 %r254, [%rd74];
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
	ld.global.cs.u32 %r255, [%rd76];
$L__BB0_42:
	add.s64 	%rd216, %rd268, %rd2;
	add.s64 	%rd215, %rd213, %rd2;
	shr.u64 	%rd214, %rd8, 2;
	add.s64 	%rd22, %rd215, %rd2;
	setp.ge.u64 	%p27, %rd22, %rd214;
	@%p27 bra 	$L__BB0_44;
	shl.b64 	%rd79, %rd22, 2;
	add.s64 	%rd78, %rd10, %rd79;
	ld.global.cs.u32 %r256, [%rd78];
$L__BB0_44:
	shr.u64 	%rd217, %rd8, 2;
	add.s64 	%rd23, %rd22, %rd2;
	setp.ge.u64 	%p28, %rd23, %rd217;
	@%p28 bra 	$L__BB0_46;
	shl.b64 	%rd81, %rd23, 2;
	add.s64 	%rd80, %rd10, %rd81;
	ld.global.cs.u32 %r257, [%rd80];
$L__BB0_46:
	shr.u64 	%rd218, %rd8, 2;
	add.s64 	%rd24, %rd23, %rd2;
	setp.ge.u64 	%p29, %rd24, %rd218;
	@%p29 bra 	$L__BB0_48;
	shl.b64 	%rd83, %rd24, 2;
	add.s64 	%rd82, %rd10, %rd83;
	ld.global.cs.u32 %r258, [%rd82];
$L__BB0_48:
	shr.u64 	%rd205, %rd8, 2;
	setp.ge.u64 	%p73, %rd268, %rd205;
	@%p73 bra 	$L__BB0_50;
	shl.b64 	%rd85, %rd268, 2;
	add.s64 	%rd84, %rd9, %rd85;
	st.global.cs.u32 [%rd84], %r253;
$L__BB0_50:
	shr.u64 	%rd208, %rd8, 2;
	add.s64 	%rd207, %rd268, %rd2;
	setp.ge.u64 	%p74, %rd207, %rd208;
	@%p74 bra 	$L__BB0_52;
	add.s64 	%rd206, %rd268, %rd2;
	shl.b64 	%rd87, %rd206, 2;
	add.s64 	%rd86, %rd9, %rd87;
	st.global.cs.u32 [%rd86], %r254;
$L__BB0_52:
	@%p26 bra 	$L__BB0_54;
	add.s64 	%rd222, %rd268, %rd2;
	add.s64 	%rd221, %rd213, %rd2;
	shl.b64 	%rd89, %rd221, 2;
	add.s64 	%rd88, %rd9, %rd89;
	st.global.cs.u32 [%rd88], %r255;
$L__BB0_54:
	@%p27 bra 	$L__BB0_56;
	shl.b64 	%rd91, %rd22, 2;
	add.s64 	%rd90, %rd9, %rd91;
	st.global.cs.u32 [%rd90], %r256;
$L__BB0_56:
	@%p28 bra 	$L__BB0_58;
	shl.b64 	%rd93, %rd23, 2;
	add.s64 	%rd92, %rd9, %rd93;
	st.global.cs.u32 [%rd92], %r257;
$L__BB0_58:
	@%p29 bra 	$L__BB0_60;
	shl.b64 	%rd95, %rd24, 2;
	add.s64 	%rd94, %rd9, %rd95;
	st.global.cs.u32 [%rd94], %r258;
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
	ld.global.cs.u8 %r138, [%rd60];
	cvt.u16.u32 	%rs55, %r138;
$L__BB0_11:
	add.s64 	%rd12, %rd267, %rd2;
	setp.ge.u64 	%p11, %rd12, %rd8;
	@%p11 bra 	$L__BB0_13;
	add.s64 	%rd61, %rd10, %rd12;
	ld.global.cs.u8 %r139, [%rd61];
	cvt.u16.u32 	%rs54, %r139;
$L__BB0_13:
	add.s64 	%rd13, %rd12, %rd2;
	setp.ge.u64 	%p12, %rd13, %rd8;
	@%p12 bra 	$L__BB0_15;
	add.s64 	%rd62, %rd10, %rd13;
	ld.global.cs.u8 %r140, [%rd62];
	cvt.u16.u32 	%rs53, %r140;
$L__BB0_15:
	add.s64 	%rd14, %rd13, %rd2;
	setp.ge.u64 	%p13, %rd14, %rd8;
	@%p13 bra 	$L__BB0_17;
	add.s64 	%rd63, %rd10, %rd14;
	ld.global.cs.u8 %r141, [%rd63];
	cvt.u16.u32 	%rs52, %r141;
$L__BB0_17:
	add.s64 	%rd15, %rd14, %rd2;
	setp.ge.u64 	%p14, %rd15, %rd8;
	@%p14 bra 	$L__BB0_19;
	add.s64 	%rd64, %rd10, %rd15;
	ld.global.cs.u8 %r142, [%rd64];
	cvt.u16.u32 	%rs51, %r142;
$L__BB0_19:
	add.s64 	%rd16, %rd15, %rd2;
	setp.ge.u64 	%p15, %rd16, %rd8;
	@%p15 bra 	$L__BB0_21;
	add.s64 	%rd65, %rd10, %rd16;
	ld.global.cs.u8 %r143, [%rd65];
	cvt.u16.u32 	%rs50, %r143;
$L__BB0_21:
	@%p10 bra 	$L__BB0_23;
	add.s64 	%rd66, %rd9, %rd267;
	cvt.u32.u16 	%r145, %rs55;
	and.b32  	%r144, %r145, 255;
	st.global.cs.u8 [%rd66], %r144;
$L__BB0_23:
	@%p11 bra 	$L__BB0_25;
	add.s64 	%rd67, %rd9, %rd12;
	cvt.u32.u16 	%r147, %rs54;
	and.b32  	%r146, %r147, 255;
	st.global.cs.u8 [%rd67], %r146;
$L__BB0_25:
	@%p12 bra 	$L__BB0_27;
	add.s64 	%rd68, %rd9, %rd13;
	cvt.u32.u16 	%r149, %rs53;
	and.b32  	%r148, %r149, 255;
	st.global.cs.u8 [%rd68], %r148;
$L__BB0_27:
	@%p13 bra 	$L__BB0_29;
	add.s64 	%rd69, %rd9, %rd14;
	cvt.u32.u16 	%r151, %rs52;
	and.b32  	%r150, %r151, 255;
	st.global.cs.u8 [%rd69], %r150;
$L__BB0_29:
	@%p14 bra 	$L__BB0_31;
	add.s64 	%rd70, %rd9, %rd15;
	cvt.u32.u16 	%r153, %rs51;
	and.b32  	%r152, %r153, 255;
	st.global.cs.u8 [%rd70], %r152;
$L__BB0_31:
	@%p15 bra 	$L__BB0_33;
	add.s64 	%rd71, %rd9, %rd16;
	cvt.u32.u16 	%r155, %rs50;
	and.b32  	%r154, %r155, 255;
	st.global.cs.u8 [%rd71], %r154;
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
	ld.global.cs.u8 %r243, [%rd157];
	add.s64 	%rd158, %rd3, %rd44;
	st.u8 	[%rd158], %r243;
$L__BB0_117:
	ld.param.u32 	%r245, [tryst_gather_param_1];
	mov.u32 	%r244, %nctaid.x;
	add.s32 	%r246, %r246, %r244;
	setp.lt.u32 	%p66, %r246, %r245;
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
	.reg .b16 	%rs<32>;
	.reg .b32 	%r<337>;
	.reg .b64 	%rd<180>;
	ld.param.u64 	%rd50, [tryst_copy_param_2];
	ld.param.u64 	%rd5, [tryst_copy_param_0+16];
	ld.param.u64 	%rd3, [tryst_copy_param_0+8];
	ld.param.u64 	%rd1, [tryst_copy_param_0];
	mov.u32 	%r1, %ntid.x;
	cvta.to.global.u64 	%rd2, %rd1;
	xor.b64  	%rd51, %rd1, %rd3;
	and.b64  	%rd4, %rd51, 15;
	setp.eq.s64 	%p1, %rd4, 0;
	setp.eq.s64 	%p2, %rd4, 8;
	and.b64  	%rd52, %rd51, 3;
	setp.eq.s64 	%p3, %rd52, 0;
	selp.b32 	%r129, 4, 1, %p3;
	selp.b32 	%r130, 8, %r129, %p2;
	selp.b32 	%r2, 16, %r130, %p1;
	cvt.u64.u32 	%rd53, %r2;
	add.s32 	%r131, %r2, -1;
	cvt.u64.u32 	%rd54, %r131;
	and.b64  	%rd55, %rd1, %rd54;
	sub.s64 	%rd56, %rd53, %rd55;
	and.b64  	%rd57, %rd56, %rd54;
	min.u64 	%rd6, %rd57, %rd5;
	sub.s64 	%rd58, %rd5, %rd6;
	neg.s64 	%rd59, %rd53;
	and.b64  	%rd7, %rd58, %rd59;
	mov.u32 	%r132, %tid.x;
	cvt.u64.u32 	%rd8, %r132;
	setp.le.u64 	%p4, %rd6, %rd8;
	@%p4 bra 	$L__BB1_2;
	add.s64 	%rd60, %rd3, %rd8;
	ld.global.cs.u8 %r133, [%rd60];
	add.s64 	%rd61, %rd2, %rd8;
	st.global.u8 	[%rd61], %r133;
$L__BB1_2:
	@%p1 bra 	$L__BB1_86;
	setp.eq.s32 	%p6, %r2, 8;
	@%p6 bra 	$L__BB1_59;
	bra.uni 	$L__BB1_4;
$L__BB1_59:
	shr.u64 	%rd28, %rd7, 3;
	setp.le.u64 	%p36, %rd28, %rd8;
	@%p36 bra 	$L__BB1_113;
	add.s64 	%rd29, %rd1, %rd6;
	add.s64 	%rd30, %rd3, %rd6;
	cvt.u64.u32 	%rd31, %r1;
$L__BB1_61:
	setp.ge.u64 	%p37, %rd8, %rd28;
	@%p37 bra 	$L__BB1_63;
	shl.b64 	%rd99, %rd8, 3;
	add.s64 	%rd98, %rd30, %rd99;
	ld.global.cs.v2.u32 {%r278,%r277}, [%rd98];
$L__BB1_63:
	add.s64 	%rd33, %rd8, %rd31;
	setp.ge.u64 	%p38, %rd33, %rd28;
	@%p38 bra 	$L__BB1_65;
	shl.b64 	%rd101, %rd33, 3;
	add.s64 	%rd100, %rd30, %rd101;
	ld.global.cs.v2.u32 {%r280,%r279}, [%rd100];
$L__BB1_65:
	add.s64 	%rd34, %rd33, %rd31;
	setp.ge.u64 	%p39, %rd34, %rd28;
	@%p39 bra 	$L__BB1_67;
	shl.b64 	%rd103, %rd34, 3;
	add.s64 	%rd102, %rd30, %rd103;
	ld.global.cs.v2.u32 {%r282,%r281}, [%rd102];
$L__BB1_67:
	add.s64 	%rd35, %rd34, %rd31;
	setp.ge.u64 	%p40, %rd35, %rd28;
	@%p40 bra 	$L__BB1_69;
	shl.b64 	%rd105, %rd35, 3;
	add.s64 	%rd104, %rd30, %rd105;
	ld.global.cs.v2.u32 {%r284,%r283}, [%rd104];
$L__BB1_69:
	add.s64 	%rd36, %rd35, %rd31;
	setp.ge.u64 	%p41, %rd36, %rd28;
	@%p41 bra 	$L__BB1_71;
	shl.b64 	%rd107, %rd36, 3;
	add.s64 	%rd106, %rd30, %rd107;
	ld.global.cs.v2.u32 {%r286,%r285}, [%rd106];
$L__BB1_71:
	add.s64 	%rd37, %rd36, %rd31;
	setp.ge.u64 	%p42, %rd37, %rd28;
	@%p42 bra 	$L__BB1_73;
	shl.b64 	%rd109, %rd37, 3;
	add.s64 	%rd108, %rd30, %rd109;
	ld.global.cs.v2.u32 {%r288,%r287}, [%rd108];
$L__BB1_73:
	@%p37 bra 	$L__BB1_75;
	shl.b64 	%rd111, %rd8, 3;
	add.s64 	%rd110, %rd29, %rd111;
	st.global.cs.v2.u32 [%rd110], {%r278,%r277};
$L__BB1_75:
	@%p38 bra 	$L__BB1_77;
	shl.b64 	%rd113, %rd33, 3;
	add.s64 	%rd112, %rd29, %rd113;
	st.global.cs.v2.u32 [%rd112], {%r280,%r279};
$L__BB1_77:
	@%p39 bra 	$L__BB1_79;
	shl.b64 	%rd115, %rd34, 3;
	add.s64 	%rd114, %rd29, %rd115;
	st.global.cs.v2.u32 [%rd114], {%r282,%r281};
$L__BB1_79:
	@%p40 bra 	$L__BB1_81;
	shl.b64 	%rd117, %rd35, 3;
	add.s64 	%rd116, %rd29, %rd117;
	st.global.cs.v2.u32 [%rd116], {%r284,%r283};
$L__BB1_81:
	@%p41 bra 	$L__BB1_83;
	shl.b64 	%rd119, %rd36, 3;
	add.s64 	%rd118, %rd29, %rd119;
	st.global.cs.v2.u32 [%rd118], {%r286,%r285};
$L__BB1_83:
	@%p42 bra 	$L__BB1_85;
	shl.b64 	%rd121, %rd37, 3;
	add.s64 	%rd120, %rd29, %rd121;
	st.global.cs.v2.u32 [%rd120], {%r288,%r287};
$L__BB1_85:
	add.s64 	%rd8, %rd37, %rd31;
	setp.lt.u64 	%p49, %rd8, %rd28;
	@%p49 bra 	$L__BB1_61;
	bra.uni 	$L__BB1_113;
$L__BB1_86:
	shr.u64 	%rd39, %rd7, 4;
	setp.le.u64 	%p50, %rd39, %rd8;
	@%p50 bra 	$L__BB1_113;
	add.s64 	%rd40, %rd1, %rd6;
$L__BB1_88:
	setp.ge.u64 	%p51, %rd8, %rd39;
	@%p51 bra 	$L__BB1_90;
	add.s64 	%rd123, %rd3, %rd6;
	shl.b64 	%rd124, %rd8, 4;
	add.s64 	%rd122, %rd123, %rd124;
	ld.global.cs.v4.u32 {%r316,%r315,%r314,%r313}, [%rd122];
$L__BB1_90:
	cvt.u64.u32 	%rd125, %r1;
	add.s64 	%rd42, %rd8, %rd125;
	setp.ge.u64 	%p52, %rd42, %rd39;
	@%p52 bra 	$L__BB1_92;
	add.s64 	%rd127, %rd3, %rd6;
	shl.b64 	%rd128, %rd42, 4;
	add.s64 	%rd126, %rd127, %rd128;
	ld.global.cs.v4.u32 {%r320,%r319,%r318,%r317}, [%rd126];
$L__BB1_92:
	add.s64 	%rd43, %rd42, %rd125;
	setp.ge.u64 	%p53, %rd43, %rd39;
	@%p53 bra 	$L__BB1_94;
	add.s64 	%rd131, %rd3, %rd6;
	shl.b64 	%rd132, %rd43, 4;
	add.s64 	%rd130, %rd131, %rd132;
	ld.global.cs.v4.u32 {%r324,%r323,%r322,%r321}, [%rd130];
$L__BB1_94:
	add.s64 	%rd44, %rd43, %rd125;
	setp.ge.u64 	%p54, %rd44, %rd39;
	@%p54 bra 	$L__BB1_96;
	add.s64 	%rd135, %rd3, %rd6;
	shl.b64 	%rd136, %rd44, 4;
	add.s64 	%rd134, %rd135, %rd136;
	ld.global.cs.v4.u32 {%r328,%r327,%r326,%r325}, [%rd134];
$L__BB1_96:
	add.s64 	%rd45, %rd44, %rd125;
	setp.ge.u64 	%p55, %rd45, %rd39;
	@%p55 bra 	$L__BB1_98;
	add.s64 	%rd139, %rd3, %rd6;
	shl.b64 	%rd140, %rd45, 4;
	add.s64 	%rd138, %rd139, %rd140;
	ld.global.cs.v4.u32 {%r332,%r331,%r330,%r329}, [%rd138];
$L__BB1_98:
	add.s64 	%rd46, %rd45, %rd125;
	setp.ge.u64 	%p56, %rd46, %rd39;
	@%p56 bra 	$L__BB1_100;
	add.s64 	%rd143, %rd3, %rd6;
	shl.b64 	%rd144, %rd46, 4;
	add.s64 	%rd142, %rd143, %rd144;
	ld.global.cs.v4.u32 {%r336,%r335,%r334,%r333}, [%rd142];
$L__BB1_100:
	@%p51 bra 	$L__BB1_102;
	shl.b64 	%rd146, %rd8, 4;
	add.s64 	%rd145, %rd40, %rd146;
	st.global.cs.v4.u32 [%rd145], {%r316,%r315,%r314,%r313};
$L__BB1_102:
	@%p52 bra 	$L__BB1_104;
	shl.b64 	%rd148, %rd42, 4;
	add.s64 	%rd147, %rd40, %rd148;
	st.global.cs.v4.u32 [%rd147], {%r320,%r319,%r318,%r317};
$L__BB1_104:
	@%p53 bra 	$L__BB1_106;
	shl.b64 	%rd150, %rd43, 4;
	add.s64 	%rd149, %rd40, %rd150;
	st.global.cs.v4.u32 [%rd149], {%r324,%r323,%r322,%r321};
$L__BB1_106:
	@%p54 bra 	$L__BB1_108;
	shl.b64 	%rd152, %rd44, 4;
	add.s64 	%rd151, %rd40, %rd152;
	st.global.cs.v4.u32 [%rd151], {%r328,%r327,%r326,%r325};
$L__BB1_108:
	@%p55 bra 	$L__BB1_110;
	shl.b64 	%rd154, %rd45, 4;
	add.s64 	%rd153, %rd40, %rd154;
	st.global.cs.v4.u32 [%rd153], {%r332,%r331,%r330,%r329};
$L__BB1_110:
	@%p56 bra 	$L__BB1_112;
	shl.b64 	%rd156, %rd46, 4;
	add.s64 	%rd155, %rd40, %rd156;
	st.global.cs.v4.u32 [%rd155], {%r336,%r335,%r334,%r333};
$L__BB1_112:
	add.s64 	%rd8, %rd46, %rd125;
	setp.lt.u64 	%p63, %rd8, %rd39;
	@%p63 bra 	$L__BB1_88;
	bra.uni 	$L__BB1_113;
$L__BB1_4:
	add.s64 	%rd9, %rd1, %rd6;
	add.s64 	%rd10, %rd3, %rd6;
	setp.eq.s32 	%p7, %r2, 4;
	@%p7 bra 	$L__BB1_32;
	bra.uni 	$L__BB1_5;
$L__BB1_32:
	shr.u64 	%rd19, %rd7, 2;
	setp.le.u64 	%p22, %rd19, %rd8;
	@%p22 bra 	$L__BB1_113;
	cvt.u64.u32 	%rd20, %r1;
$L__BB1_34:
	setp.ge.u64 	%p23, %rd8, %rd19;
	@%p23 bra 	$L__BB1_36;
	shl.b64 	%rd75, %rd8, 2;
	add.s64 	%rd74, %rd10, %rd75;
	ld.global.cs.u32 %r259, [%rd74];
$L__BB1_36:
	add.s64 	%rd22, %rd8, %rd20;
	setp.ge.u64 	%p24, %rd22, %rd19;
	@%p24 bra 	$L__BB1_38;
	shl.b64 	%rd77, %rd22, 2;
	add.s64 	%rd76, %rd10, %rd77;
	ld.global.cs.u32 %r260, [%rd76];
$L__BB1_38:
	add.s64 	%rd23, %rd22, %rd20;
	setp.ge.u64 	%p25, %rd23, %rd19;
	@%p25 bra 	$L__BB1_40;
	shl.b64 	%rd79, %rd23, 2;
	add.s64 	%rd78, %rd10, %rd79;
	ld.global.cs.u32 %r261, [%rd78];
$L__BB1_40:
	add.s64 	%rd24, %rd23, %rd20;
	setp.ge.u64 	%p26, %rd24, %rd19;
	@%p26 bra 	$L__BB1_42;
	shl.b64 	%rd81, %rd24, 2;
	add.s64 	%rd80, %rd10, %rd81;
	ld.global.cs.u32 %r262, [%rd80];
$L__BB1_42:
	add.s64 	%rd25, %rd24, %rd20;
	setp.ge.u64 	%p27, %rd25, %rd19;
	@%p27 bra 	$L__BB1_44;
	shl.b64 	%rd83, %rd25, 2;
	add.s64 	%rd82, %rd10, %rd83;
	ld.global.cs.u32 %r263, [%rd82];
$L__BB1_44:
	add.s64 	%rd26, %rd25, %rd20;
	setp.ge.u64 	%p28, %rd26, %rd19;
	@%p28 bra 	$L__BB1_46;
	shl.b64 	%rd85, %rd26, 2;
	add.s64 	%rd84, %rd10, %rd85;
	ld.global.cs.u32 %r264, [%rd84];
$L__BB1_46:
	@%p23 bra 	$L__BB1_48;
	shl.b64 	%rd87, %rd8, 2;
	add.s64 	%rd86, %rd9, %rd87;
	st.global.cs.u32 [%rd86], %r259;
$L__BB1_48:
	@%p24 bra 	$L__BB1_50;
	shl.b64 	%rd89, %rd22, 2;
	add.s64 	%rd88, %rd9, %rd89;
	st.global.cs.u32 [%rd88], %r260;
$L__BB1_50:
	@%p25 bra 	$L__BB1_52;
	shl.b64 	%rd91, %rd23, 2;
	add.s64 	%rd90, %rd9, %rd91;
	st.global.cs.u32 [%rd90], %r261;
$L__BB1_52:
	@%p26 bra 	$L__BB1_54;
	shl.b64 	%rd93, %rd24, 2;
	add.s64 	%rd92, %rd9, %rd93;
	st.global.cs.u32 [%rd92], %r262;
$L__BB1_54:
	@%p27 bra 	$L__BB1_56;
	shl.b64 	%rd95, %rd25, 2;
	add.s64 	%rd94, %rd9, %rd95;
	st.global.cs.u32 [%rd94], %r263;
$L__BB1_56:
	@%p28 bra 	$L__BB1_58;
	shl.b64 	%rd97, %rd26, 2;
	add.s64 	%rd96, %rd9, %rd97;
	st.global.cs.u32 [%rd96], %r264;
$L__BB1_58:
	add.s64 	%rd8, %rd26, %rd20;
	setp.lt.u64 	%p35, %rd8, %rd19;
	@%p35 bra 	$L__BB1_34;
	bra.uni 	$L__BB1_113;
$L__BB1_5:
	setp.le.u64 	%p8, %rd7, %rd8;
	@%p8 bra 	$L__BB1_113;
	cvt.u64.u32 	%rd11, %r1;
$L__BB1_7:
	setp.ge.u64 	%p9, %rd8, %rd7;
	@%p9 bra 	$L__BB1_9;
	add.s64 	%rd62, %rd10, %rd8;
	ld.global.cs.u8 %r134, [%rd62];
	cvt.u16.u32 	%rs26, %r134;
$L__BB1_9:
	add.s64 	%rd13, %rd8, %rd11;
	setp.ge.u64 	%p10, %rd13, %rd7;
	@%p10 bra 	$L__BB1_11;
	add.s64 	%rd63, %rd10, %rd13;
	ld.global.cs.u8 %r135, [%rd63];
	cvt.u16.u32 	%rs27, %r135;
$L__BB1_11:
	add.s64 	%rd14, %rd13, %rd11;
	setp.ge.u64 	%p11, %rd14, %rd7;
	@%p11 bra 	$L__BB1_13;
	add.s64 	%rd64, %rd10, %rd14;
	ld.global.cs.u8 %r136, [%rd64];
	cvt.u16.u32 	%rs28, %r136;
$L__BB1_13:
	add.s64 	%rd15, %rd14, %rd11;
	setp.ge.u64 	%p12, %rd15, %rd7;
	@%p12 bra 	$L__BB1_15;
	add.s64 	%rd65, %rd10, %rd15;
	ld.global.cs.u8 %r137, [%rd65];
	cvt.u16.u32 	%rs29, %r137;
$L__BB1_15:
	add.s64 	%rd16, %rd15, %rd11;
	setp.ge.u64 	%p13, %rd16, %rd7;
	@%p13 bra 	$L__BB1_17;
	add.s64 	%rd66, %rd10, %rd16;
	ld.global.cs.u8 %r138, [%rd66];
	cvt.u16.u32 	%rs30, %r138;
$L__BB1_17:
	add.s64 	%rd17, %rd16, %rd11;
	setp.ge.u64 	%p14, %rd17, %rd7;
	@%p14 bra 	$L__BB1_19;
	add.s64 	%rd67, %rd10, %rd17;
	ld.global.cs.u8 %r139, [%rd67];
	cvt.u16.u32 	%rs31, %r139;
$L__BB1_19:
	@%p9 bra 	$L__BB1_21;
	add.s64 	%rd68, %rd9, %rd8;
	cvt.u32.u16 	%r141, %rs26;
	and.b32  	%r140, %r141, 255;
	st.global.cs.u8 [%rd68], %r140;
$L__BB1_21:
	@%p10 bra 	$L__BB1_23;
	add.s64 	%rd69, %rd9, %rd13;
	cvt.u32.u16 	%r143, %rs27;
	and.b32  	%r142, %r143, 255;
	st.global.cs.u8 [%rd69], %r142;
$L__BB1_23:
	@%p11 bra 	$L__BB1_25;
	add.s64 	%rd70, %rd9, %rd14;
	cvt.u32.u16 	%r145, %rs28;
	and.b32  	%r144, %r145, 255;
	st.global.cs.u8 [%rd70], %r144;
$L__BB1_25:
	@%p12 bra 	$L__BB1_27;
	add.s64 	%rd71, %rd9, %rd15;
	cvt.u32.u16 	%r147, %rs29;
	and.b32  	%r146, %r147, 255;
	st.global.cs.u8 [%rd71], %r146;
$L__BB1_27:
	@%p13 bra 	$L__BB1_29;
	add.s64 	%rd72, %rd9, %rd16;
	cvt.u32.u16 	%r149, %rs30;
	and.b32  	%r148, %r149, 255;
	st.global.cs.u8 [%rd72], %r148;
$L__BB1_29:
	@%p14 bra 	$L__BB1_31;
	add.s64 	%rd73, %rd9, %rd17;
	cvt.u32.u16 	%r151, %rs31;
	and.b32  	%r150, %r151, 255;
	st.global.cs.u8 [%rd73], %r150;
$L__BB1_31:
	add.s64 	%rd8, %rd17, %rd11;
	setp.lt.u64 	%p21, %rd8, %rd7;
	@%p21 bra 	$L__BB1_7;
$L__BB1_113:
	ld.param.u64 	%rd172, [tryst_copy_param_0];
	xor.b64  	%rd171, %rd172, %rd3;
	and.b64  	%rd170, %rd171, 15;
	ld.param.u64 	%rd169, [tryst_copy_param_0+16];
	mov.u32 	%r251, %tid.x;
	ld.param.u64 	%rd168, [tryst_copy_param_0+16];
	and.b64  	%rd167, %rd171, 3;
	setp.eq.s64 	%p68, %rd167, 0;
	setp.eq.s64 	%p67, %rd170, 8;
	selp.b32 	%r250, 4, 1, %p68;
	setp.eq.s64 	%p66, %rd170, 0;
	selp.b32 	%r249, 8, %r250, %p67;
	selp.b32 	%r248, 16, %r249, %p66;
	cvt.u64.u32 	%rd166, %r248;
	neg.s64 	%rd165, %rd166;
	sub.s64 	%rd164, %rd168, %rd6;
	and.b64  	%rd163, %rd164, %rd165;
	cvt.u64.u32 	%rd158, %r251;
	add.s64 	%rd159, %rd6, %rd158;
	add.s64 	%rd48, %rd159, %rd163;
	setp.ge.u64 	%p64, %rd48, %rd168;
	@%p64 bra 	$L__BB1_115;
	ld.param.u64 	%rd174, [tryst_copy_param_0];
	cvta.to.global.u64 	%rd173, %rd174;
	add.s64 	%rd160, %rd3, %rd48;
	ld.global.cs.u8 %r246, [%rd160];
	add.s64 	%rd161, %rd173, %rd48;
	st.global.u8 	[%rd161], %r246;
$L__BB1_115:
	mov.u32 	%r252, %tid.x;
	bar.sync 	0;
	setp.ne.s32 	%p65, %r252, 0;
	@%p65 bra 	$L__BB1_117;
	ld.param.u64 	%rd175, [tryst_copy_param_1];
	membar.sys;
	cvta.to.global.u64 	%rd162, %rd175;
	st.volatile.global.u64 	[%rd162], %rd50;
$L__BB1_117:
	ret;
}
.visible .entry tryst_standby(
	.param .u64 tryst_standby_param_0,
	.param .u64 tryst_standby_param_1,
	.param .u64 tryst_standby_param_2,
	.param .u64 tryst_standby_param_3,
	.param .u64 tryst_standby_param_4,
	.param .u64 tryst_standby_param_5
)
.maxntid 1024, 1, 1
{
	.reg .pred 	%p<105>;
	.reg .b16 	%rs<45>;
	.reg .b32 	%r<265>;
	.reg .b64 	%rd<284>;
	.shared .align 8 .b8 _ZZ13tryst_standbyE5piece[24];
	.shared .align 1 .u8 _ZZ13tryst_standbyE6leaves;
	ld.param.u64 	%rd53, [tryst_standby_param_0];
	ld.param.u64 	%rd54, [tryst_standby_param_1];
	ld.param.u64 	%rd278, [tryst_standby_param_2];
	ld.param.u64 	%rd56, [tryst_standby_param_3];
	ld.param.u64 	%rd58, [tryst_standby_param_5];
	cvta.to.global.u64 	%rd60, %rd53;
	mov.u64 %rd59, %globaltimer;
	mov.u32 	%r1, %tid.x;
	setp.eq.s32 	%p7, %r1, 0;
	add.s64 	%rd2, %rd60, 320;
	@%p7 bra 	$L__BB2_1;
	bra.uni 	$L__BB2_4;
$L__BB2_1:
	mov.u32 	%r2, %nctaid.x;
	setp.eq.s32 	%p8, %r2, 1;
	@%p8 bra 	$L__BB2_3;
	cvta.to.global.u64 	%rd61, %rd54;
	add.s64 	%rd62, %rd61, 256;
	atom.global.add.u32 	%r89, [%rd62], 1;
	add.s32 	%r90, %r2, -1;
	setp.ne.s32 	%p9, %r89, %r90;
	@%p9 bra 	$L__BB2_4;
$L__BB2_3:
	st.volatile.global.u64 	[%rd2], %rd56;
$L__BB2_4:
	mov.u32 	%r91, %nctaid.x;
	mov.u32 	%r92, %ntid.x;
	mov.u32 	%r93, %ctaid.x;
	mad.lo.s32 	%r94, %r93, %r92, %r1;
	mul.lo.s32 	%r95, %r91, %r92;
	cvt.u64.u32 	%rd3, %r94;
	cvt.u64.u32 	%rd4, %r95;
	cvta.to.global.u64 	%rd7, %rd54;
	mov.u64 	%rd277, %rd59;
	bra.uni 	$L__BB2_5;
$L__BB2_130:
	mov.u64 %rd277, %globaltimer;
	add.s64 	%rd278, %rd278, 1;
$L__BB2_5:
	setp.gt.u32 	%p10, %r1, 31;
	@%p10 bra 	$L__BB2_28;
	ld.param.u64 	%rd181, [tryst_standby_param_0];
	ld.param.u64 	%rd180, [tryst_standby_param_1];
	setp.ne.s32 	%p11, %r93, 0;
	sub.s64 	%rd63, %rd277, %rd59;
	setp.le.u64 	%p12, %rd63, %rd58;
	or.pred  	%p1, %p11, %p12;
	and.b64  	%rd8, %rd278, 7;
	shl.b64 	%rd64, %rd278, 5;
	and.b64  	%rd65, %rd64, 224;
	add.s64 	%rd66, %rd181, %rd65;
	mul.wide.u32 	%rd67, %r1, 8;
	add.s64 	%rd9, %rd66, %rd67;
	add.s64 	%rd68, %rd180, %rd65;
	add.s64 	%rd10, %rd68, %rd67;
	and.b64  	%rd11, %rd278, 65535;
$L__BB2_7:
	setp.gt.u32 	%p13, %r1, 2;
	mov.u64 	%rd279, 0;
	@%p13 bra 	$L__BB2_11;
	setp.eq.s32 	%p14, %r93, 0;
	@%p14 bra 	$L__BB2_10;
	ld.acquire.gpu.u64 %rd279, [%rd10];
	bra.uni 	$L__BB2_11;
$L__BB2_10:
	ld.acquire.sys.u64 %rd279, [%rd9];
$L__BB2_11:
	mov.pred 	%p103, 0;
	not.pred 	%p16, %p1;
	@%p16 bra 	$L__BB2_13;
	shr.u64 	%rd74, %rd279, 48;
	setp.eq.s64 	%p18, %rd74, %rd11;
	or.pred  	%p103, %p13, %p18;
$L__BB2_13:
	mov.u32 	%r100, -1;
	vote.sync.all.pred 	%p19, %p103, %r100;
	@%p19 bra 	$L__BB2_20;
	setp.eq.s32 	%p20, %r93, 0;
	@%p20 bra 	$L__BB2_16;
	ld.volatile.global.u32 	%r103, [%rd7+296];
	setp.ne.s32 	%p104, %r103, 0;
	bra.uni 	$L__BB2_17;
$L__BB2_16:
	ld.param.u64 	%rd182, [tryst_standby_param_4];
	mov.u64 %rd75, %globaltimer;
	sub.s64 	%rd76, %rd75, %rd277;
	setp.gt.u64 	%p21, %rd76, %rd182;
	sub.s64 	%rd77, %rd75, %rd59;
	setp.gt.u64 	%p22, %rd77, %rd58;
	or.pred  	%p104, %p21, %p22;
$L__BB2_17:
	mov.u32 	%r104, -1;
	vote.sync.any.pred 	%p23, %p104, %r104;
	not.pred 	%p24, %p23;
	@%p24 bra 	$L__BB2_7;
	setp.ne.s32 	%p25, %r1, 0;
	@%p25 bra 	$L__BB2_28;
	mov.u16 	%rs24, 1;
	st.shared.u8 	[_ZZ13tryst_standbyE6leaves], %rs24;
	bra.uni 	$L__BB2_28;
$L__BB2_20:
	@%p13 bra 	$L__BB2_26;
	@%p11 bra 	$L__BB2_25;
	setp.gt.u32 	%p28, %r91, 1;
	shl.b64 	%rd79, %rd8, 5;
	add.s64 	%rd80, %rd7, %rd79;
	add.s64 	%rd15, %rd80, %rd67;
	@%p28 bra 	$L__BB2_24;
	bra.uni 	$L__BB2_23;
$L__BB2_24:
	st.release.gpu.u64 [%rd10], %rd279;
	bra.uni 	$L__BB2_25;
$L__BB2_23:
	st.volatile.global.u64 	[%rd15], %rd279;
$L__BB2_25:
	and.b64  	%rd84, %rd279, 281474976710655;
	shl.b32 	%r112, %r1, 3;
	mov.u32 	%r113, _ZZ13tryst_standbyE5piece;
	add.s32 	%r114, %r113, %r112;
	st.shared.u64 	[%r114], %rd84;
$L__BB2_26:
	setp.ne.s32 	%p29, %r1, 0;
	@%p29 bra 	$L__BB2_28;
	mov.u16 	%rs25, 0;
	st.shared.u8 	[_ZZ13tryst_standbyE6leaves], %rs25;
$L__BB2_28:
	bar.sync 	0;
	ld.shared.u8 	%rs26, [_ZZ13tryst_standbyE6leaves];
	setp.eq.s16 	%p30, %rs26, 0;
	@%p30 bra 	$L__BB2_40;
	bra.uni 	$L__BB2_29;
$L__BB2_40:
	ld.shared.u64 	%rd16, [_ZZ13tryst_standbyE5piece];
	ld.shared.u64 	%rd17, [_ZZ13tryst_standbyE5piece+8];
	xor.b64  	%rd88, %rd16, %rd17;
	and.b64  	%rd18, %rd88, 15;
	setp.eq.s64 	%p37, %rd18, 0;
	setp.eq.s64 	%p38, %rd18, 8;
	and.b64  	%rd89, %rd88, 3;
	setp.eq.s64 	%p39, %rd89, 0;
	selp.b32 	%r126, 4, 1, %p39;
	selp.b32 	%r127, 8, %r126, %p38;
	selp.b32 	%r4, 16, %r127, %p37;
	cvt.u64.u32 	%rd90, %r4;
	add.s32 	%r128, %r4, -1;
	cvt.u64.u32 	%rd91, %r128;
	and.b64  	%rd92, %rd16, %rd91;
	sub.s64 	%rd93, %rd90, %rd92;
	and.b64  	%rd94, %rd93, %rd91;
	ld.shared.u64 	%rd19, [_ZZ13tryst_standbyE5piece+16];
	min.u64 	%rd20, %rd94, %rd19;
	sub.s64 	%rd95, %rd19, %rd20;
	neg.s64 	%rd96, %rd90;
	and.b64  	%rd21, %rd95, %rd96;
	setp.le.u64 	%p40, %rd20, %rd3;
	@%p40 bra 	$L__BB2_42;
	add.s64 	%rd97, %rd17, %rd3;
	ld.global.cv.u8 %r129, [%rd97];
	add.s64 	%rd98, %rd16, %rd3;
	st.u8 	[%rd98], %r129;
$L__BB2_42:
	@%p37 bra 	$L__BB2_102;
	setp.eq.s32 	%p42, %r4, 8;
	@%p42 bra 	$L__BB2_83;
	bra.uni 	$L__BB2_44;
$L__BB2_83:
	shr.u64 	%rd35, %rd21, 3;
	setp.le.u64 	%p64, %rd35, %rd3;
	@%p64 bra 	$L__BB2_121;
	mov.u64 	%rd282, %rd3;
$L__BB2_85:
	shr.u64 	%rd249, %rd21, 3;
	setp.ge.u64 	%p65, %rd282, %rd249;
	@%p65 bra 	$L__BB2_87;
	add.s64 	%rd234, %rd17, %rd20;
	shl.b64 	%rd124, %rd282, 3;
	add.s64 	%rd123, %rd234, %rd124;
	ld.global.cv.v2.u32 {%r226,%r225}, [%rd123];
$L__BB2_87:
	shr.u64 	%rd250, %rd21, 3;
	add.s64 	%rd39, %rd282, %rd4;
	setp.ge.u64 	%p66, %rd39, %rd250;
	@%p66 bra 	$L__BB2_89;
	add.s64 	%rd243, %rd282, %rd4;
	add.s64 	%rd242, %rd17, %rd20;
	shl.b64 	%rd126, %rd243, 3;
	add.s64 	%rd125, %rd242, %rd126;
	ld.global.cv.v2.u32 {%r228,%r227}, [%rd125];
$L__BB2_89:
	shr.u64 	%rd251, %rd21, 3;
	add.s64 	%rd233, %rd282, %rd4;
	add.s64 	%rd40, %rd233, %rd4;
	setp.ge.u64 	%p67, %rd40, %rd251;
	@%p67 bra 	$L__BB2_91;
	add.s64 	%rd255, %rd282, %rd4;
	add.s64 	%rd254, %rd255, %rd4;
	add.s64 	%rd241, %rd17, %rd20;
	shl.b64 	%rd128, %rd254, 3;
	add.s64 	%rd127, %rd241, %rd128;
	ld.global.cv.v2.u32 {%r230,%r229}, [%rd127];
$L__BB2_91:
	add.s64 	%rd246, %rd282, %rd4;
	add.s64 	%rd245, %rd246, %rd4;
	shr.u64 	%rd244, %rd21, 3;
	add.s64 	%rd41, %rd245, %rd4;
	setp.ge.u64 	%p68, %rd41, %rd244;
	@%p68 bra 	$L__BB2_93;
	add.s64 	%rd273, %rd282, %rd4;
	add.s64 	%rd272, %rd273, %rd4;
	add.s64 	%rd271, %rd272, %rd4;
	add.s64 	%rd240, %rd17, %rd20;
	shl.b64 	%rd130, %rd271, 3;
	add.s64 	%rd129, %rd240, %rd130;
	ld.global.cv.v2.u32 {%r232,%r231}, [%rd129];
$L__BB2_93:
	shr.u64 	%rd247, %rd21, 3;
	setp.ge.u64 	%p98, %rd282, %rd247;
	@%p98 bra 	$L__BB2_95;
	add.s64 	%rd239, %rd16, %rd20;
	shl.b64 	%rd132, %rd282, 3;
	add.s64 	%rd131, %rd239, %rd132;
	st.global.cs.v2.u32 [%rd131], {%r226,%r225};
$L__BB2_95:
	shr.u64 	%rd257, %rd21, 3;
	add.s64 	%rd256, %rd282, %rd4;
	setp.ge.u64 	%p99, %rd256, %rd257;
	@%p99 bra 	$L__BB2_97;
	add.s64 	%rd238, %rd16, %rd20;
	add.s64 	%rd237, %rd282, %rd4;
	shl.b64 	%rd134, %rd237, 3;
	add.s64 	%rd133, %rd238, %rd134;
	st.global.cs.v2.u32 [%rd133], {%r228,%r227};
$L__BB2_97:
	add.s64 	%rd260, %rd282, %rd4;
	shr.u64 	%rd259, %rd21, 3;
	add.s64 	%rd258, %rd260, %rd4;
	setp.ge.u64 	%p100, %rd258, %rd259;
	@%p100 bra 	$L__BB2_99;
	add.s64 	%rd253, %rd282, %rd4;
	add.s64 	%rd252, %rd253, %rd4;
	add.s64 	%rd236, %rd16, %rd20;
	shl.b64 	%rd136, %rd252, 3;
	add.s64 	%rd135, %rd236, %rd136;
	st.global.cs.v2.u32 [%rd135], {%r230,%r229};
$L__BB2_99:
	add.s64 	%rd264, %rd282, %rd4;
	add.s64 	%rd263, %rd264, %rd4;
	shr.u64 	%rd262, %rd21, 3;
	add.s64 	%rd261, %rd263, %rd4;
	setp.ge.u64 	%p101, %rd261, %rd262;
	@%p101 bra 	$L__BB2_101;
	add.s64 	%rd270, %rd282, %rd4;
	add.s64 	%rd269, %rd270, %rd4;
	add.s64 	%rd268, %rd269, %rd4;
	add.s64 	%rd235, %rd16, %rd20;
	shl.b64 	%rd138, %rd268, 3;
	add.s64 	%rd137, %rd235, %rd138;
	st.global.cs.v2.u32 [%rd137], {%r232,%r231};
$L__BB2_101:
	add.s64 	%rd267, %rd282, %rd4;
	add.s64 	%rd266, %rd267, %rd4;
	add.s64 	%rd265, %rd266, %rd4;
	shr.u64 	%rd248, %rd21, 3;
	add.s64 	%rd282, %rd265, %rd4;
	setp.lt.u64 	%p73, %rd282, %rd248;
	@%p73 bra 	$L__BB2_85;
	bra.uni 	$L__BB2_121;
$L__BB2_102:
	shr.u64 	%rd139, %rd21, 4;
	setp.le.u64 	%p74, %rd139, %rd3;
	@%p74 bra 	$L__BB2_121;
	mov.u64 	%rd283, %rd3;
$L__BB2_104:
	shr.u64 	%rd183, %rd21, 4;
	setp.ge.u64 	%p75, %rd283, %rd183;
	@%p75 bra 	$L__BB2_106;
	add.s64 	%rd142, %rd17, %rd20;
	shl.b64 	%rd143, %rd283, 4;
	add.s64 	%rd141, %rd142, %rd143;
	ld.global.cv.v4.u32 {%r252,%r251,%r250,%r249}, [%rd141];
$L__BB2_106:
	shr.u64 	%rd184, %rd21, 4;
	add.s64 	%rd44, %rd283, %rd4;
	setp.ge.u64 	%p76, %rd44, %rd184;
	@%p76 bra 	$L__BB2_108;
	add.s64 	%rd188, %rd283, %rd4;
	add.s64 	%rd146, %rd17, %rd20;
	shl.b64 	%rd147, %rd188, 4;
	add.s64 	%rd145, %rd146, %rd147;
	ld.global.cv.v4.u32 {%r256,%r255,%r254,%r253}, [%rd145];
$L__BB2_108:
	add.s64 	%rd186, %rd283, %rd4;
	shr.u64 	%rd185, %rd21, 4;
	add.s64 	%rd45, %rd186, %rd4;
	setp.ge.u64 	%p77, %rd45, %rd185;
	@%p77 bra 	$L__BB2_110;
	add.s64 	%rd150, %rd17, %rd20;
	shl.b64 	%rd151, %rd45, 4;
	add.s64 	%rd149, %rd150, %rd151;
	ld.global.cv.v4.u32 {%r260,%r259,%r258,%r257}, [%rd149];
$L__BB2_110:
	shr.u64 	%rd187, %rd21, 4;
	add.s64 	%rd46, %rd45, %rd4;
	setp.ge.u64 	%p78, %rd46, %rd187;
	@%p78 bra 	$L__BB2_112;
	add.s64 	%rd154, %rd17, %rd20;
	shl.b64 	%rd155, %rd46, 4;
	add.s64 	%rd153, %rd154, %rd155;
	ld.global.cv.v4.u32 {%r264,%r263,%r262,%r261}, [%rd153];
$L__BB2_112:
	shr.u64 	%rd274, %rd21, 4;
	setp.ge.u64 	%p102, %rd283, %rd274;
	@%p102 bra 	$L__BB2_114;
	add.s64 	%rd158, %rd16, %rd20;
	shl.b64 	%rd159, %rd283, 4;
	add.s64 	%rd157, %rd158, %rd159;
	st.global.cs.v4.u32 [%rd157], {%r252,%r251,%r250,%r249};
$L__BB2_114:
	shr.u64 	%rd191, %rd21, 4;
	add.s64 	%rd190, %rd283, %rd4;
	setp.ge.u64 	%p90, %rd190, %rd191;
	@%p90 bra 	$L__BB2_116;
	add.s64 	%rd189, %rd283, %rd4;
	add.s64 	%rd161, %rd16, %rd20;
	shl.b64 	%rd162, %rd189, 4;
	add.s64 	%rd160, %rd161, %rd162;
	st.global.cs.v4.u32 [%rd160], {%r256,%r255,%r254,%r253};
$L__BB2_116:
	add.s64 	%rd194, %rd283, %rd4;
	shr.u64 	%rd193, %rd21, 4;
	add.s64 	%rd192, %rd194, %rd4;
	setp.ge.u64 	%p91, %rd192, %rd193;
	@%p91 bra 	$L__BB2_118;
	add.s64 	%rd200, %rd283, %rd4;
	add.s64 	%rd199, %rd200, %rd4;
	add.s64 	%rd164, %rd16, %rd20;
	shl.b64 	%rd165, %rd199, 4;
	add.s64 	%rd163, %rd164, %rd165;
	st.global.cs.v4.u32 [%rd163], {%r260,%r259,%r258,%r257};
$L__BB2_118:
	add.s64 	%rd198, %rd283, %rd4;
	add.s64 	%rd197, %rd198, %rd4;
	shr.u64 	%rd196, %rd21, 4;
	add.s64 	%rd195, %rd197, %rd4;
	setp.ge.u64 	%p92, %rd195, %rd196;
	@%p92 bra 	$L__BB2_120;
	add.s64 	%rd276, %rd45, %rd4;
	add.s64 	%rd167, %rd16, %rd20;
	shl.b64 	%rd168, %rd276, 4;
	add.s64 	%rd166, %rd167, %rd168;
	st.global.cs.v4.u32 [%rd166], {%r264,%r263,%r262,%r261};
$L__BB2_120:
	add.s64 	%rd275, %rd45, %rd4;
	shr.u64 	%rd178, %rd21, 4;
	add.s64 	%rd283, %rd275, %rd4;
	setp.lt.u64 	%p83, %rd283, %rd178;
	@%p83 bra 	$L__BB2_104;
	bra.uni 	$L__BB2_121;
$L__BB2_44:
	add.s64 	%rd22, %rd16, %rd20;
	add.s64 	%rd23, %rd17, %rd20;
	setp.eq.s32 	%p43, %r4, 4;
	@%p43 bra 	$L__BB2_64;
	bra.uni 	$L__BB2_45;
$L__BB2_64:
	shr.u64 	%rd29, %rd21, 2;
	setp.le.u64 	%p54, %rd29, %rd3;
	@%p54 bra 	$L__BB2_121;
	mov.u64 	%rd281, %rd3;
$L__BB2_66:
	shr.u64 	%rd209, %rd21, 2;
	setp.ge.u64 	%p55, %rd281, %rd209;
	@%p55 bra 	$L__BB2_68;
	add.s64 	%rd227, %rd17, %rd20;
	shl.b64 	%rd108, %rd281, 2;
	add.s64 	%rd107, %rd227, %rd108;
	ld.global.cv.u32 %r213, [%rd107];
$L__BB2_68:
	shr.u64 	%rd210, %rd21, 2;
	add.s64 	%rd31, %rd281, %rd4;
	setp.ge.u64 	%p56, %rd31, %rd210;
	@%p56 bra 	$L__BB2_70;
	add.s64 	%rd226, %rd17, %rd20;
	add.s64 	%rd212, %rd281, %rd4;
	shl.b64 	%rd110, %rd212, 2;
	add.s64 	%rd109, %rd226, %rd110;
	ld.global.cv.u32 %r214, [%rd109];
$L__BB2_70:
	add.s64 	%rd206, %rd281, %rd4;
	shr.u64 	%rd205, %rd21, 2;
	add.s64 	%rd32, %rd206, %rd4;
	setp.ge.u64 	%p57, %rd32, %rd205;
	@%p57 bra 	$L__BB2_72;
	add.s64 	%rd225, %rd17, %rd20;
	add.s64 	%rd224, %rd281, %rd4;
	add.s64 	%rd223, %rd224, %rd4;
	shl.b64 	%rd112, %rd223, 2;
	add.s64 	%rd111, %rd225, %rd112;
	ld.global.cv.u32 %r215, [%rd111];
$L__BB2_72:
	add.s64 	%rd214, %rd281, %rd4;
	add.s64 	%rd213, %rd214, %rd4;
	shr.u64 	%rd207, %rd21, 2;
	add.s64 	%rd33, %rd213, %rd4;
	setp.ge.u64 	%p58, %rd33, %rd207;
	@%p58 bra 	$L__BB2_74;
	add.s64 	%rd232, %rd17, %rd20;
	shl.b64 	%rd114, %rd33, 2;
	add.s64 	%rd113, %rd232, %rd114;
	ld.global.cv.u32 %r216, [%rd113];
$L__BB2_74:
	shr.u64 	%rd215, %rd21, 2;
	setp.ge.u64 	%p95, %rd281, %rd215;
	@%p95 bra 	$L__BB2_76;
	add.s64 	%rd231, %rd16, %rd20;
	shl.b64 	%rd116, %rd281, 2;
	add.s64 	%rd115, %rd231, %rd116;
	st.global.cs.u32 [%rd115], %r213;
$L__BB2_76:
	shr.u64 	%rd217, %rd21, 2;
	add.s64 	%rd216, %rd281, %rd4;
	setp.ge.u64 	%p96, %rd216, %rd217;
	@%p96 bra 	$L__BB2_78;
	add.s64 	%rd230, %rd16, %rd20;
	add.s64 	%rd211, %rd281, %rd4;
	shl.b64 	%rd118, %rd211, 2;
	add.s64 	%rd117, %rd230, %rd118;
	st.global.cs.u32 [%rd117], %r214;
$L__BB2_78:
	add.s64 	%rd220, %rd281, %rd4;
	shr.u64 	%rd219, %rd21, 2;
	add.s64 	%rd218, %rd220, %rd4;
	setp.ge.u64 	%p97, %rd218, %rd219;
	@%p97 bra 	$L__BB2_80;
	add.s64 	%rd229, %rd16, %rd20;
	add.s64 	%rd222, %rd281, %rd4;
	add.s64 	%rd221, %rd222, %rd4;
	shl.b64 	%rd120, %rd221, 2;
	add.s64 	%rd119, %rd229, %rd120;
	st.global.cs.u32 [%rd119], %r215;
$L__BB2_80:
	@%p58 bra 	$L__BB2_82;
	add.s64 	%rd228, %rd16, %rd20;
	shl.b64 	%rd122, %rd33, 2;
	add.s64 	%rd121, %rd228, %rd122;
	st.global.cs.u32 [%rd121], %r216;
$L__BB2_82:
	shr.u64 	%rd208, %rd21, 2;
	add.s64 	%rd281, %rd33, %rd4;
	setp.lt.u64 	%p63, %rd281, %rd208;
	@%p63 bra 	$L__BB2_66;
	bra.uni 	$L__BB2_121;
$L__BB2_45:
	setp.le.u64 	%p44, %rd21, %rd3;
	@%p44 bra 	$L__BB2_121;
	mov.u64 	%rd280, %rd3;
$L__BB2_47:
	setp.ge.u64 	%p45, %rd280, %rd21;
	@%p45 bra 	$L__BB2_49;
	add.s64 	%rd99, %rd23, %rd280;
	ld.global.cv.u8 %r130, [%rd99];
	cvt.u16.u32 	%rs43, %r130;
$L__BB2_49:
	add.s64 	%rd25, %rd280, %rd4;
	setp.ge.u64 	%p46, %rd25, %rd21;
	@%p46 bra 	$L__BB2_51;
	add.s64 	%rd100, %rd23, %rd25;
	ld.global.cv.u8 %r131, [%rd100];
	cvt.u16.u32 	%rs42, %r131;
$L__BB2_51:
	add.s64 	%rd26, %rd25, %rd4;
	setp.ge.u64 	%p47, %rd26, %rd21;
	@%p47 bra 	$L__BB2_53;
	add.s64 	%rd101, %rd23, %rd26;
	ld.global.cv.u8 %r132, [%rd101];
	cvt.u16.u32 	%rs41, %r132;
$L__BB2_53:
	add.s64 	%rd27, %rd26, %rd4;
	setp.ge.u64 	%p48, %rd27, %rd21;
	@%p48 bra 	$L__BB2_55;
	add.s64 	%rd102, %rd23, %rd27;
	ld.global.cv.u8 %r133, [%rd102];
	cvt.u16.u32 	%rs40, %r133;
$L__BB2_55:
	setp.ge.u64 	%p93, %rd280, %rd21;
	@%p93 bra 	$L__BB2_57;
	add.s64 	%rd103, %rd22, %rd280;
	cvt.u32.u16 	%r135, %rs43;
	and.b32  	%r134, %r135, 255;
	st.global.cs.u8 [%rd103], %r134;
$L__BB2_57:
	add.s64 	%rd202, %rd280, %rd4;
	setp.ge.u64 	%p94, %rd202, %rd21;
	@%p94 bra 	$L__BB2_59;
	add.s64 	%rd201, %rd280, %rd4;
	add.s64 	%rd104, %rd22, %rd201;
	cvt.u32.u16 	%r137, %rs42;
	and.b32  	%r136, %r137, 255;
	st.global.cs.u8 [%rd104], %r136;
$L__BB2_59:
	@%p47 bra 	$L__BB2_61;
	add.s64 	%rd204, %rd280, %rd4;
	add.s64 	%rd203, %rd204, %rd4;
	add.s64 	%rd105, %rd22, %rd203;
	cvt.u32.u16 	%r139, %rs41;
	and.b32  	%r138, %r139, 255;
	st.global.cs.u8 [%rd105], %r138;
$L__BB2_61:
	@%p48 bra 	$L__BB2_63;
	add.s64 	%rd106, %rd22, %rd27;
	cvt.u32.u16 	%r141, %rs40;
	and.b32  	%r140, %r141, 255;
	st.global.cs.u8 [%rd106], %r140;
$L__BB2_63:
	add.s64 	%rd280, %rd27, %rd4;
	setp.lt.u64 	%p53, %rd280, %rd21;
	@%p53 bra 	$L__BB2_47;
$L__BB2_121:
	add.s64 	%rd169, %rd20, %rd3;
	add.s64 	%rd49, %rd169, %rd21;
	setp.ge.u64 	%p84, %rd49, %rd19;
	@%p84 bra 	$L__BB2_123;
	add.s64 	%rd170, %rd17, %rd49;
	ld.global.cv.u8 %r201, [%rd170];
	add.s64 	%rd171, %rd16, %rd49;
	st.u8 	[%rd171], %r201;
$L__BB2_123:
	setp.ne.s32 	%p85, %r1, 0;
	bar.sync 	0;
	@%p85 bra 	$L__BB2_130;
	setp.lt.u32 	%p86, %r91, 2;
	@%p86 bra 	$L__BB2_126;
	fence.acq_rel.gpu;
$L__BB2_126:
	shl.b64 	%rd173, %rd278, 2;
	and.b64  	%rd174, %rd173, 28;
	add.s64 	%rd175, %rd7, %rd174;
	add.s64 	%rd50, %rd175, 264;
	setp.eq.s32 	%p87, %r91, 1;
	mov.u16 	%rs44, 1;
	@%p87 bra 	$L__BB2_128;
	atom.global.add.u32 	%r205, [%rd50], 1;
	add.s32 	%r207, %r91, -1;
	setp.eq.s32 	%p88, %r205, %r207;
	selp.u16 	%rs44, 1, 0, %p88;
$L__BB2_128:
	setp.eq.s16 	%p89, %rs44, 0;
	@%p89 bra 	$L__BB2_130;
	mov.u32 	%r208, 0;
	st.global.u32 	[%rd50], %r208;
	fence.acq_rel.sys;
	st.volatile.global.u64 	[%rd60+256], %rd278;
	bra.uni 	$L__BB2_130;
$L__BB2_29:
	setp.ne.s32 	%p31, %r1, 0;
	@%p31 bra 	$L__BB2_39;
	setp.ne.s32 	%p32, %r93, 0;
	@%p32 bra 	$L__BB2_32;
	mov.u32 	%r118, 1;
	st.volatile.global.u32 	[%rd7+296], %r118;
$L__BB2_32:
	setp.lt.u32 	%p33, %r91, 2;
	@%p33 bra 	$L__BB2_34;
	fence.acq_rel.gpu;
$L__BB2_34:
	setp.eq.s32 	%p34, %r91, 1;
	@%p34 bra 	$L__BB2_36;
	add.s64 	%rd86, %rd7, 260;
	atom.global.add.u32 	%r121, [%rd86], 1;
	add.s32 	%r123, %r91, -1;
	setp.ne.s32 	%p35, %r121, %r123;
	@%p35 bra 	$L__BB2_39;
$L__BB2_36:
	@%p33 bra 	$L__BB2_38;
	fence.acq_rel.gpu;
$L__BB2_38:
	ld.param.u64 	%rd179, [tryst_standby_param_3];
	mov.u32 	%r125, 0;
	st.global.v4.u32 	[%rd7+256], {%r125, %r125, %r125, %r125};
	st.global.v4.u32 	[%rd7+272], {%r125, %r125, %r125, %r125};
	st.global.v2.u32 	[%rd7+288], {%r125, %r125};
	st.global.u32 	[%rd7+296], %r125;
	fence.acq_rel.sys;
	st.volatile.global.u64 	[%rd60+384], %rd179;
$L__BB2_39:
	ret;
}
)ptx";

}  // namespace tryst

#endif  // TRYST_GPU_GATHER_PTX_H_
