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
	.reg .b32 	%r<339>;
	.reg .b64 	%rd<179>;
	ld.param.u64 	%rd49, [tryst_copy_param_1];
	ld.param.u64 	%rd50, [tryst_copy_param_2];
	ld.param.u64 	%rd5, [tryst_copy_param_0+16];
	ld.param.u64 	%rd3, [tryst_copy_param_0+8];
	ld.param.u64 	%rd1, [tryst_copy_param_0];
	cvta.to.global.u64 	%rd2, %rd1;
	xor.b64  	%rd51, %rd1, %rd3;
	and.b64  	%rd4, %rd51, 15;
	setp.eq.s64 	%p1, %rd4, 0;
	setp.eq.s64 	%p2, %rd4, 8;
	and.b64  	%rd52, %rd51, 3;
	setp.eq.s64 	%p3, %rd52, 0;
	selp.b32 	%r128, 4, 1, %p3;
	selp.b32 	%r129, 8, %r128, %p2;
	selp.b32 	%r1, 16, %r129, %p1;
	cvt.u64.u32 	%rd53, %r1;
	add.s32 	%r130, %r1, -1;
	cvt.u64.u32 	%rd54, %r130;
	and.b64  	%rd55, %rd1, %rd54;
	sub.s64 	%rd56, %rd53, %rd55;
	and.b64  	%rd57, %rd56, %rd54;
	min.u64 	%rd6, %rd57, %rd5;
	sub.s64 	%rd58, %rd5, %rd6;
	neg.s64 	%rd59, %rd53;
	and.b64  	%rd7, %rd58, %rd59;
	mov.u32 	%r131, %tid.x;
	cvt.u64.u32 	%rd8, %r131;
	setp.le.u64 	%p4, %rd6, %rd8;
	@%p4 bra 	$L__BB1_2;
	add.s64 	%rd60, %rd3, %rd8;
	ld.global.cs.u8 %r132, [%rd60];
	add.s64 	%rd61, %rd2, %rd8;
	st.global.u8 	[%rd61], %r132;
$L__BB1_2:
	@%p1 bra 	$L__BB1_86;
	setp.eq.s32 	%p6, %r1, 8;
	@%p6 bra 	$L__BB1_59;
	bra.uni 	$L__BB1_4;
$L__BB1_59:
	shr.u64 	%rd28, %rd7, 3;
	setp.le.u64 	%p36, %rd28, %rd8;
	@%p36 bra 	$L__BB1_113;
	add.s64 	%rd29, %rd1, %rd6;
	add.s64 	%rd30, %rd3, %rd6;
	mov.u32 	%r167, %ntid.x;
	cvt.u64.u32 	%rd31, %r167;
$L__BB1_61:
	setp.ge.u64 	%p37, %rd8, %rd28;
	@%p37 bra 	$L__BB1_63;
	shl.b64 	%rd99, %rd8, 3;
	add.s64 	%rd98, %rd30, %rd99;
	ld.global.cs.v2.u32 {%r280,%r279}, [%rd98];
$L__BB1_63:
	add.s64 	%rd33, %rd8, %rd31;
	setp.ge.u64 	%p38, %rd33, %rd28;
	@%p38 bra 	$L__BB1_65;
	shl.b64 	%rd101, %rd33, 3;
	add.s64 	%rd100, %rd30, %rd101;
	ld.global.cs.v2.u32 {%r282,%r281}, [%rd100];
$L__BB1_65:
	add.s64 	%rd34, %rd33, %rd31;
	setp.ge.u64 	%p39, %rd34, %rd28;
	@%p39 bra 	$L__BB1_67;
	shl.b64 	%rd103, %rd34, 3;
	add.s64 	%rd102, %rd30, %rd103;
	ld.global.cs.v2.u32 {%r284,%r283}, [%rd102];
$L__BB1_67:
	add.s64 	%rd35, %rd34, %rd31;
	setp.ge.u64 	%p40, %rd35, %rd28;
	@%p40 bra 	$L__BB1_69;
	shl.b64 	%rd105, %rd35, 3;
	add.s64 	%rd104, %rd30, %rd105;
	ld.global.cs.v2.u32 {%r286,%r285}, [%rd104];
$L__BB1_69:
	add.s64 	%rd36, %rd35, %rd31;
	setp.ge.u64 	%p41, %rd36, %rd28;
	@%p41 bra 	$L__BB1_71;
	shl.b64 	%rd107, %rd36, 3;
	add.s64 	%rd106, %rd30, %rd107;
	ld.global.cs.v2.u32 {%r288,%r287}, [%rd106];
$L__BB1_71:
	add.s64 	%rd37, %rd36, %rd31;
	setp.ge.u64 	%p42, %rd37, %rd28;
	@%p42 bra 	$L__BB1_73;
	shl.b64 	%rd109, %rd37, 3;
	add.s64 	%rd108, %rd30, %rd109;
	ld.global.cs.v2.u32 {%r290,%r289}, [%rd108];
$L__BB1_73:
	@%p37 bra 	$L__BB1_75;
	shl.b64 	%rd111, %rd8, 3;
	add.s64 	%rd110, %rd29, %rd111;
	st.global.cs.v2.u32 [%rd110], {%r280,%r279};
$L__BB1_75:
	@%p38 bra 	$L__BB1_77;
	shl.b64 	%rd113, %rd33, 3;
	add.s64 	%rd112, %rd29, %rd113;
	st.global.cs.v2.u32 [%rd112], {%r282,%r281};
$L__BB1_77:
	@%p39 bra 	$L__BB1_79;
	shl.b64 	%rd115, %rd34, 3;
	add.s64 	%rd114, %rd29, %rd115;
	st.global.cs.v2.u32 [%rd114], {%r284,%r283};
$L__BB1_79:
	@%p40 bra 	$L__BB1_81;
	shl.b64 	%rd117, %rd35, 3;
	add.s64 	%rd116, %rd29, %rd117;
	st.global.cs.v2.u32 [%rd116], {%r286,%r285};
$L__BB1_81:
	@%p41 bra 	$L__BB1_83;
	shl.b64 	%rd119, %rd36, 3;
	add.s64 	%rd118, %rd29, %rd119;
	st.global.cs.v2.u32 [%rd118], {%r288,%r287};
$L__BB1_83:
	@%p42 bra 	$L__BB1_85;
	shl.b64 	%rd121, %rd37, 3;
	add.s64 	%rd120, %rd29, %rd121;
	st.global.cs.v2.u32 [%rd120], {%r290,%r289};
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
	ld.global.cs.v4.u32 {%r318,%r317,%r316,%r315}, [%rd122];
$L__BB1_90:
	mov.u32 	%r197, %ntid.x;
	cvt.u64.u32 	%rd125, %r197;
	add.s64 	%rd42, %rd8, %rd125;
	setp.ge.u64 	%p52, %rd42, %rd39;
	@%p52 bra 	$L__BB1_92;
	add.s64 	%rd127, %rd3, %rd6;
	shl.b64 	%rd128, %rd42, 4;
	add.s64 	%rd126, %rd127, %rd128;
	ld.global.cs.v4.u32 {%r322,%r321,%r320,%r319}, [%rd126];
$L__BB1_92:
	add.s64 	%rd43, %rd42, %rd125;
	setp.ge.u64 	%p53, %rd43, %rd39;
	@%p53 bra 	$L__BB1_94;
	add.s64 	%rd131, %rd3, %rd6;
	shl.b64 	%rd132, %rd43, 4;
	add.s64 	%rd130, %rd131, %rd132;
	ld.global.cs.v4.u32 {%r326,%r325,%r324,%r323}, [%rd130];
$L__BB1_94:
	add.s64 	%rd44, %rd43, %rd125;
	setp.ge.u64 	%p54, %rd44, %rd39;
	@%p54 bra 	$L__BB1_96;
	add.s64 	%rd135, %rd3, %rd6;
	shl.b64 	%rd136, %rd44, 4;
	add.s64 	%rd134, %rd135, %rd136;
	ld.global.cs.v4.u32 {%r330,%r329,%r328,%r327}, [%rd134];
$L__BB1_96:
	add.s64 	%rd45, %rd44, %rd125;
	setp.ge.u64 	%p55, %rd45, %rd39;
	@%p55 bra 	$L__BB1_98;
	add.s64 	%rd139, %rd3, %rd6;
	shl.b64 	%rd140, %rd45, 4;
	add.s64 	%rd138, %rd139, %rd140;
	ld.global.cs.v4.u32 {%r334,%r333,%r332,%r331}, [%rd138];
$L__BB1_98:
	add.s64 	%rd46, %rd45, %rd125;
	setp.ge.u64 	%p56, %rd46, %rd39;
	@%p56 bra 	$L__BB1_100;
	add.s64 	%rd143, %rd3, %rd6;
	shl.b64 	%rd144, %rd46, 4;
	add.s64 	%rd142, %rd143, %rd144;
	ld.global.cs.v4.u32 {%r338,%r337,%r336,%r335}, [%rd142];
$L__BB1_100:
	@%p51 bra 	$L__BB1_102;
	shl.b64 	%rd146, %rd8, 4;
	add.s64 	%rd145, %rd40, %rd146;
	st.global.cs.v4.u32 [%rd145], {%r318,%r317,%r316,%r315};
$L__BB1_102:
	@%p52 bra 	$L__BB1_104;
	shl.b64 	%rd148, %rd42, 4;
	add.s64 	%rd147, %rd40, %rd148;
	st.global.cs.v4.u32 [%rd147], {%r322,%r321,%r320,%r319};
$L__BB1_104:
	@%p53 bra 	$L__BB1_106;
	shl.b64 	%rd150, %rd43, 4;
	add.s64 	%rd149, %rd40, %rd150;
	st.global.cs.v4.u32 [%rd149], {%r326,%r325,%r324,%r323};
$L__BB1_106:
	@%p54 bra 	$L__BB1_108;
	shl.b64 	%rd152, %rd44, 4;
	add.s64 	%rd151, %rd40, %rd152;
	st.global.cs.v4.u32 [%rd151], {%r330,%r329,%r328,%r327};
$L__BB1_108:
	@%p55 bra 	$L__BB1_110;
	shl.b64 	%rd154, %rd45, 4;
	add.s64 	%rd153, %rd40, %rd154;
	st.global.cs.v4.u32 [%rd153], {%r334,%r333,%r332,%r331};
$L__BB1_110:
	@%p56 bra 	$L__BB1_112;
	shl.b64 	%rd156, %rd46, 4;
	add.s64 	%rd155, %rd40, %rd156;
	st.global.cs.v4.u32 [%rd155], {%r338,%r337,%r336,%r335};
$L__BB1_112:
	add.s64 	%rd8, %rd46, %rd125;
	setp.lt.u64 	%p63, %rd8, %rd39;
	@%p63 bra 	$L__BB1_88;
	bra.uni 	$L__BB1_113;
$L__BB1_4:
	add.s64 	%rd9, %rd1, %rd6;
	add.s64 	%rd10, %rd3, %rd6;
	setp.eq.s32 	%p7, %r1, 4;
	@%p7 bra 	$L__BB1_32;
	bra.uni 	$L__BB1_5;
$L__BB1_32:
	shr.u64 	%rd19, %rd7, 2;
	setp.le.u64 	%p22, %rd19, %rd8;
	@%p22 bra 	$L__BB1_113;
	mov.u32 	%r153, %ntid.x;
	cvt.u64.u32 	%rd20, %r153;
$L__BB1_34:
	setp.ge.u64 	%p23, %rd8, %rd19;
	@%p23 bra 	$L__BB1_36;
	shl.b64 	%rd75, %rd8, 2;
	add.s64 	%rd74, %rd10, %rd75;
	ld.global.cs.u32 %r261, [%rd74];
$L__BB1_36:
	add.s64 	%rd22, %rd8, %rd20;
	setp.ge.u64 	%p24, %rd22, %rd19;
	@%p24 bra 	$L__BB1_38;
	shl.b64 	%rd77, %rd22, 2;
	add.s64 	%rd76, %rd10, %rd77;
	ld.global.cs.u32 %r262, [%rd76];
$L__BB1_38:
	add.s64 	%rd23, %rd22, %rd20;
	setp.ge.u64 	%p25, %rd23, %rd19;
	@%p25 bra 	$L__BB1_40;
	shl.b64 	%rd79, %rd23, 2;
	add.s64 	%rd78, %rd10, %rd79;
	ld.global.cs.u32 %r263, [%rd78];
$L__BB1_40:
	add.s64 	%rd24, %rd23, %rd20;
	setp.ge.u64 	%p26, %rd24, %rd19;
	@%p26 bra 	$L__BB1_42;
	shl.b64 	%rd81, %rd24, 2;
	add.s64 	%rd80, %rd10, %rd81;
	ld.global.cs.u32 %r264, [%rd80];
$L__BB1_42:
	add.s64 	%rd25, %rd24, %rd20;
	setp.ge.u64 	%p27, %rd25, %rd19;
	@%p27 bra 	$L__BB1_44;
	shl.b64 	%rd83, %rd25, 2;
	add.s64 	%rd82, %rd10, %rd83;
	ld.global.cs.u32 %r265, [%rd82];
$L__BB1_44:
	add.s64 	%rd26, %rd25, %rd20;
	setp.ge.u64 	%p28, %rd26, %rd19;
	@%p28 bra 	$L__BB1_46;
	shl.b64 	%rd85, %rd26, 2;
	add.s64 	%rd84, %rd10, %rd85;
	ld.global.cs.u32 %r266, [%rd84];
$L__BB1_46:
	@%p23 bra 	$L__BB1_48;
	shl.b64 	%rd87, %rd8, 2;
	add.s64 	%rd86, %rd9, %rd87;
	st.global.cs.u32 [%rd86], %r261;
$L__BB1_48:
	@%p24 bra 	$L__BB1_50;
	shl.b64 	%rd89, %rd22, 2;
	add.s64 	%rd88, %rd9, %rd89;
	st.global.cs.u32 [%rd88], %r262;
$L__BB1_50:
	@%p25 bra 	$L__BB1_52;
	shl.b64 	%rd91, %rd23, 2;
	add.s64 	%rd90, %rd9, %rd91;
	st.global.cs.u32 [%rd90], %r263;
$L__BB1_52:
	@%p26 bra 	$L__BB1_54;
	shl.b64 	%rd93, %rd24, 2;
	add.s64 	%rd92, %rd9, %rd93;
	st.global.cs.u32 [%rd92], %r264;
$L__BB1_54:
	@%p27 bra 	$L__BB1_56;
	shl.b64 	%rd95, %rd25, 2;
	add.s64 	%rd94, %rd9, %rd95;
	st.global.cs.u32 [%rd94], %r265;
$L__BB1_56:
	@%p28 bra 	$L__BB1_58;
	shl.b64 	%rd97, %rd26, 2;
	add.s64 	%rd96, %rd9, %rd97;
	st.global.cs.u32 [%rd96], %r266;
$L__BB1_58:
	add.s64 	%rd8, %rd26, %rd20;
	setp.lt.u64 	%p35, %rd8, %rd19;
	@%p35 bra 	$L__BB1_34;
	bra.uni 	$L__BB1_113;
$L__BB1_5:
	setp.le.u64 	%p8, %rd7, %rd8;
	@%p8 bra 	$L__BB1_113;
	mov.u32 	%r133, %ntid.x;
	cvt.u64.u32 	%rd11, %r133;
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
	mov.u32 	%r253, %tid.x;
	ld.param.u64 	%rd168, [tryst_copy_param_0+16];
	and.b64  	%rd167, %rd171, 3;
	setp.eq.s64 	%p68, %rd167, 0;
	setp.eq.s64 	%p67, %rd170, 8;
	selp.b32 	%r252, 4, 1, %p68;
	setp.eq.s64 	%p66, %rd170, 0;
	selp.b32 	%r251, 8, %r252, %p67;
	selp.b32 	%r250, 16, %r251, %p66;
	cvt.u64.u32 	%rd166, %r250;
	neg.s64 	%rd165, %rd166;
	sub.s64 	%rd164, %rd168, %rd6;
	and.b64  	%rd163, %rd164, %rd165;
	cvt.u64.u32 	%rd158, %r253;
	add.s64 	%rd159, %rd6, %rd158;
	add.s64 	%rd48, %rd159, %rd163;
	setp.ge.u64 	%p64, %rd48, %rd168;
	@%p64 bra 	$L__BB1_115;
	ld.param.u64 	%rd174, [tryst_copy_param_0];
	cvta.to.global.u64 	%rd173, %rd174;
	add.s64 	%rd160, %rd3, %rd48;
	ld.global.cs.u8 %r248, [%rd160];
	add.s64 	%rd161, %rd173, %rd48;
	st.global.u8 	[%rd161], %r248;
$L__BB1_115:
	mov.u32 	%r254, %tid.x;
	bar.sync 	0;
	setp.ne.s32 	%p65, %r254, 0;
	@%p65 bra 	$L__BB1_117;
	membar.sys;
	cvta.to.global.u64 	%rd162, %rd49;
	st.volatile.global.u64 	[%rd162], %rd50;
$L__BB1_117:
	ret;
}
.visible .entry tryst_standby(
	.param .u64 tryst_standby_param_0,
	.param .u64 tryst_standby_param_1,
	.param .u64 tryst_standby_param_2,
	.param .u64 tryst_standby_param_3,
	.param .u64 tryst_standby_param_4
)
.maxntid 1024, 1, 1
{
	.reg .pred 	%p<71>;
	.reg .b16 	%rs<41>;
	.reg .b32 	%r<236>;
	.reg .b64 	%rd<210>;
	.shared .align 8 .b8 _ZZ13tryst_standbyE5piece[24];
	.shared .align 1 .u8 _ZZ13tryst_standbyE6leaves;
	ld.param.u64 	%rd46, [tryst_standby_param_0];
	ld.param.u64 	%rd203, [tryst_standby_param_1];
	mov.u64 %rd51, %globaltimer;
	mov.u32 	%r86, %tid.x;
	cvt.u64.u32 	%rd2, %r86;
	mov.u32 	%r87, %ntid.x;
	cvt.u64.u32 	%rd3, %r87;
	cvt.u32.u64 	%r88, %rd2;
	shl.b32 	%r98, %r86, 3;
	mov.u32 	%r99, _ZZ13tryst_standbyE5piece;
	add.s32 	%r100, %r99, %r98;
	mov.u64 	%rd204, %rd51;
	bra.uni 	$L__BB2_1;
$L__BB2_103:
	mov.u64 %rd204, %globaltimer;
	add.s64 	%rd203, %rd203, 1;
$L__BB2_1:
	setp.gt.u32 	%p1, %r88, 31;
	@%p1 bra 	$L__BB2_14;
	cvta.to.global.u64 	%rd52, %rd46;
	shl.b64 	%rd53, %rd203, 5;
	and.b64  	%rd54, %rd53, 224;
	add.s64 	%rd55, %rd52, %rd54;
	shl.b64 	%rd56, %rd2, 3;
	add.s64 	%rd6, %rd55, %rd56;
	and.b64  	%rd7, %rd203, 65535;
$L__BB2_3:
	setp.gt.u32 	%p2, %r88, 2;
	mov.u64 	%rd205, 0;
	@%p2 bra 	$L__BB2_5;
	ld.volatile.global.u64 	%rd205, [%rd6];
$L__BB2_5:
	shr.u64 	%rd58, %rd205, 48;
	setp.eq.s64 	%p4, %rd58, %rd7;
	or.pred  	%p5, %p2, %p4;
	mov.u32 	%r91, -1;
	vote.sync.all.pred 	%p6, %p5, %r91;
	@%p6 bra 	$L__BB2_9;
	ld.param.u64 	%rd154, [tryst_standby_param_4];
	ld.param.u64 	%rd153, [tryst_standby_param_3];
	mov.u64 %rd59, %globaltimer;
	sub.s64 	%rd60, %rd59, %rd204;
	setp.gt.u64 	%p7, %rd60, %rd153;
	sub.s64 	%rd61, %rd59, %rd51;
	setp.gt.u64 	%p8, %rd61, %rd154;
	or.pred  	%p9, %p7, %p8;
	vote.sync.any.pred 	%p10, %p9, %r91;
	not.pred 	%p11, %p10;
	@%p11 bra 	$L__BB2_3;
	setp.ne.s32 	%p12, %r88, 0;
	@%p12 bra 	$L__BB2_13;
	mov.u16 	%rs22, 1;
	st.shared.u8 	[_ZZ13tryst_standbyE6leaves], %rs22;
	bra.uni 	$L__BB2_13;
$L__BB2_9:
	@%p2 bra 	$L__BB2_11;
	and.b64  	%rd62, %rd205, 281474976710655;
	st.shared.u64 	[%r100], %rd62;
$L__BB2_11:
	setp.ne.s32 	%p14, %r88, 0;
	@%p14 bra 	$L__BB2_13;
	mov.u16 	%rs23, 0;
	st.shared.u8 	[_ZZ13tryst_standbyE6leaves], %rs23;
$L__BB2_13:
	fence.acq_rel.sys;
$L__BB2_14:
	bar.sync 	0;
	ld.shared.u8 	%rs24, [_ZZ13tryst_standbyE6leaves];
	setp.eq.s16 	%p15, %rs24, 0;
	@%p15 bra 	$L__BB2_18;
	bra.uni 	$L__BB2_15;
$L__BB2_18:
	ld.shared.u64 	%rd10, [_ZZ13tryst_standbyE5piece];
	ld.shared.u64 	%rd11, [_ZZ13tryst_standbyE5piece+8];
	xor.b64  	%rd64, %rd10, %rd11;
	and.b64  	%rd12, %rd64, 15;
	setp.eq.s64 	%p17, %rd12, 0;
	setp.eq.s64 	%p18, %rd12, 8;
	and.b64  	%rd65, %rd64, 3;
	setp.eq.s64 	%p19, %rd65, 0;
	selp.b32 	%r103, 4, 1, %p19;
	selp.b32 	%r104, 8, %r103, %p18;
	selp.b32 	%r1, 16, %r104, %p17;
	cvt.u64.u32 	%rd66, %r1;
	add.s32 	%r105, %r1, -1;
	cvt.u64.u32 	%rd67, %r105;
	and.b64  	%rd68, %rd10, %rd67;
	sub.s64 	%rd69, %rd66, %rd68;
	and.b64  	%rd70, %rd69, %rd67;
	ld.shared.u64 	%rd13, [_ZZ13tryst_standbyE5piece+16];
	min.u64 	%rd14, %rd70, %rd13;
	sub.s64 	%rd71, %rd13, %rd14;
	neg.s64 	%rd72, %rd66;
	and.b64  	%rd15, %rd71, %rd72;
	setp.le.u64 	%p20, %rd14, %rd2;
	@%p20 bra 	$L__BB2_20;
	add.s64 	%rd73, %rd11, %rd2;
	ld.global.cv.u8 %r106, [%rd73];
	add.s64 	%rd74, %rd10, %rd2;
	st.u8 	[%rd74], %r106;
$L__BB2_20:
	@%p17 bra 	$L__BB2_80;
	setp.eq.s32 	%p22, %r1, 8;
	@%p22 bra 	$L__BB2_61;
	bra.uni 	$L__BB2_22;
$L__BB2_61:
	shr.u64 	%rd29, %rd15, 3;
	setp.le.u64 	%p44, %rd29, %rd2;
	@%p44 bra 	$L__BB2_99;
	mov.u64 	%rd208, %rd2;
$L__BB2_63:
	shr.u64 	%rd188, %rd15, 3;
	setp.ge.u64 	%p45, %rd208, %rd188;
	@%p45 bra 	$L__BB2_65;
	add.s64 	%rd179, %rd11, %rd14;
	shl.b64 	%rd100, %rd208, 3;
	add.s64 	%rd99, %rd179, %rd100;
	ld.global.cv.v2.u32 {%r197,%r196}, [%rd99];
$L__BB2_65:
	shr.u64 	%rd189, %rd15, 3;
	add.s64 	%rd33, %rd208, %rd3;
	setp.ge.u64 	%p46, %rd33, %rd189;
	@%p46 bra 	$L__BB2_67;
	add.s64 	%rd178, %rd11, %rd14;
	add.s64 	%rd177, %rd208, %rd3;
	shl.b64 	%rd102, %rd177, 3;
	add.s64 	%rd101, %rd178, %rd102;
	ld.global.cv.v2.u32 {%r199,%r198}, [%rd101];
$L__BB2_67:
	shr.u64 	%rd190, %rd15, 3;
	add.s64 	%rd175, %rd208, %rd3;
	add.s64 	%rd34, %rd175, %rd3;
	setp.ge.u64 	%p47, %rd34, %rd190;
	@%p47 bra 	$L__BB2_69;
	add.s64 	%rd195, %rd208, %rd3;
	add.s64 	%rd194, %rd195, %rd3;
	add.s64 	%rd185, %rd11, %rd14;
	shl.b64 	%rd104, %rd194, 3;
	add.s64 	%rd103, %rd185, %rd104;
	ld.global.cv.v2.u32 {%r201,%r200}, [%rd103];
$L__BB2_69:
	add.s64 	%rd193, %rd208, %rd3;
	add.s64 	%rd192, %rd193, %rd3;
	shr.u64 	%rd191, %rd15, 3;
	add.s64 	%rd35, %rd192, %rd3;
	setp.ge.u64 	%p48, %rd35, %rd191;
	@%p48 bra 	$L__BB2_71;
	add.s64 	%rd184, %rd11, %rd14;
	shl.b64 	%rd106, %rd35, 3;
	add.s64 	%rd105, %rd184, %rd106;
	ld.global.cv.v2.u32 {%r203,%r202}, [%rd105];
$L__BB2_71:
	shr.u64 	%rd186, %rd15, 3;
	setp.ge.u64 	%p68, %rd208, %rd186;
	@%p68 bra 	$L__BB2_73;
	add.s64 	%rd183, %rd10, %rd14;
	shl.b64 	%rd108, %rd208, 3;
	add.s64 	%rd107, %rd183, %rd108;
	st.global.cs.v2.u32 [%rd107], {%r197,%r196};
$L__BB2_73:
	@%p46 bra 	$L__BB2_75;
	add.s64 	%rd182, %rd10, %rd14;
	add.s64 	%rd176, %rd208, %rd3;
	shl.b64 	%rd110, %rd176, 3;
	add.s64 	%rd109, %rd182, %rd110;
	st.global.cs.v2.u32 [%rd109], {%r199,%r198};
$L__BB2_75:
	@%p47 bra 	$L__BB2_77;
	add.s64 	%rd197, %rd208, %rd3;
	add.s64 	%rd196, %rd197, %rd3;
	add.s64 	%rd181, %rd10, %rd14;
	shl.b64 	%rd112, %rd196, 3;
	add.s64 	%rd111, %rd181, %rd112;
	st.global.cs.v2.u32 [%rd111], {%r201,%r200};
$L__BB2_77:
	@%p48 bra 	$L__BB2_79;
	add.s64 	%rd180, %rd10, %rd14;
	shl.b64 	%rd114, %rd35, 3;
	add.s64 	%rd113, %rd180, %rd114;
	st.global.cs.v2.u32 [%rd113], {%r203,%r202};
$L__BB2_79:
	shr.u64 	%rd187, %rd15, 3;
	add.s64 	%rd208, %rd35, %rd3;
	setp.lt.u64 	%p53, %rd208, %rd187;
	@%p53 bra 	$L__BB2_63;
	bra.uni 	$L__BB2_99;
$L__BB2_80:
	shr.u64 	%rd115, %rd15, 4;
	setp.le.u64 	%p54, %rd115, %rd2;
	@%p54 bra 	$L__BB2_99;
	mov.u64 	%rd209, %rd2;
$L__BB2_82:
	shr.u64 	%rd155, %rd15, 4;
	setp.ge.u64 	%p55, %rd209, %rd155;
	@%p55 bra 	$L__BB2_84;
	add.s64 	%rd118, %rd11, %rd14;
	shl.b64 	%rd119, %rd209, 4;
	add.s64 	%rd117, %rd118, %rd119;
	ld.global.cv.v4.u32 {%r223,%r222,%r221,%r220}, [%rd117];
$L__BB2_84:
	shr.u64 	%rd156, %rd15, 4;
	add.s64 	%rd38, %rd209, %rd3;
	setp.ge.u64 	%p56, %rd38, %rd156;
	@%p56 bra 	$L__BB2_86;
	add.s64 	%rd164, %rd209, %rd3;
	add.s64 	%rd122, %rd11, %rd14;
	shl.b64 	%rd123, %rd164, 4;
	add.s64 	%rd121, %rd122, %rd123;
	ld.global.cv.v4.u32 {%r227,%r226,%r225,%r224}, [%rd121];
$L__BB2_86:
	add.s64 	%rd158, %rd209, %rd3;
	shr.u64 	%rd157, %rd15, 4;
	add.s64 	%rd39, %rd158, %rd3;
	setp.ge.u64 	%p57, %rd39, %rd157;
	@%p57 bra 	$L__BB2_88;
	add.s64 	%rd163, %rd209, %rd3;
	add.s64 	%rd162, %rd158, %rd3;
	add.s64 	%rd126, %rd11, %rd14;
	shl.b64 	%rd127, %rd162, 4;
	add.s64 	%rd125, %rd126, %rd127;
	ld.global.cv.v4.u32 {%r231,%r230,%r229,%r228}, [%rd125];
$L__BB2_88:
	add.s64 	%rd161, %rd209, %rd3;
	add.s64 	%rd160, %rd158, %rd3;
	shr.u64 	%rd159, %rd15, 4;
	add.s64 	%rd40, %rd160, %rd3;
	setp.ge.u64 	%p58, %rd40, %rd159;
	@%p58 bra 	$L__BB2_90;
	add.s64 	%rd130, %rd11, %rd14;
	shl.b64 	%rd131, %rd40, 4;
	add.s64 	%rd129, %rd130, %rd131;
	ld.global.cv.v4.u32 {%r235,%r234,%r233,%r232}, [%rd129];
$L__BB2_90:
	shr.u64 	%rd150, %rd15, 4;
	setp.ge.u64 	%p66, %rd209, %rd150;
	@%p66 bra 	$L__BB2_92;
	add.s64 	%rd134, %rd10, %rd14;
	shl.b64 	%rd135, %rd209, 4;
	add.s64 	%rd133, %rd134, %rd135;
	st.global.cs.v4.u32 [%rd133], {%r223,%r222,%r221,%r220};
$L__BB2_92:
	shr.u64 	%rd199, %rd15, 4;
	add.s64 	%rd198, %rd209, %rd3;
	setp.ge.u64 	%p69, %rd198, %rd199;
	@%p69 bra 	$L__BB2_94;
	add.s64 	%rd167, %rd209, %rd3;
	add.s64 	%rd137, %rd10, %rd14;
	shl.b64 	%rd138, %rd167, 4;
	add.s64 	%rd136, %rd137, %rd138;
	st.global.cs.v4.u32 [%rd136], {%r227,%r226,%r225,%r224};
$L__BB2_94:
	add.s64 	%rd202, %rd209, %rd3;
	shr.u64 	%rd201, %rd15, 4;
	add.s64 	%rd200, %rd202, %rd3;
	setp.ge.u64 	%p70, %rd200, %rd201;
	@%p70 bra 	$L__BB2_96;
	add.s64 	%rd166, %rd209, %rd3;
	add.s64 	%rd165, %rd158, %rd3;
	add.s64 	%rd140, %rd10, %rd14;
	shl.b64 	%rd141, %rd165, 4;
	add.s64 	%rd139, %rd140, %rd141;
	st.global.cs.v4.u32 [%rd139], {%r231,%r230,%r229,%r228};
$L__BB2_96:
	@%p58 bra 	$L__BB2_98;
	add.s64 	%rd143, %rd10, %rd14;
	shl.b64 	%rd144, %rd40, 4;
	add.s64 	%rd142, %rd143, %rd144;
	st.global.cs.v4.u32 [%rd142], {%r235,%r234,%r233,%r232};
$L__BB2_98:
	shr.u64 	%rd151, %rd15, 4;
	add.s64 	%rd209, %rd40, %rd3;
	setp.lt.u64 	%p63, %rd209, %rd151;
	@%p63 bra 	$L__BB2_82;
	bra.uni 	$L__BB2_99;
$L__BB2_22:
	add.s64 	%rd16, %rd10, %rd14;
	add.s64 	%rd17, %rd11, %rd14;
	setp.eq.s32 	%p23, %r1, 4;
	@%p23 bra 	$L__BB2_42;
	bra.uni 	$L__BB2_23;
$L__BB2_42:
	shr.u64 	%rd23, %rd15, 2;
	setp.le.u64 	%p34, %rd23, %rd2;
	@%p34 bra 	$L__BB2_99;
	mov.u64 	%rd207, %rd2;
$L__BB2_44:
	shr.u64 	%rd171, %rd15, 2;
	setp.ge.u64 	%p35, %rd207, %rd171;
	@%p35 bra 	$L__BB2_46;
	shl.b64 	%rd84, %rd207, 2;
	add.s64 	%rd83, %rd17, %rd84;
	ld.global.cv.u32 %r184, [%rd83];
$L__BB2_46:
	shr.u64 	%rd172, %rd15, 2;
	add.s64 	%rd25, %rd207, %rd3;
	setp.ge.u64 	%p36, %rd25, %rd172;
	@%p36 bra 	$L__BB2_48;
	shl.b64 	%rd86, %rd25, 2;
	add.s64 	%rd85, %rd17, %rd86;
	ld.global.cv.u32 %r185, [%rd85];
$L__BB2_48:
	shr.u64 	%rd173, %rd15, 2;
	add.s64 	%rd26, %rd25, %rd3;
	setp.ge.u64 	%p37, %rd26, %rd173;
	@%p37 bra 	$L__BB2_50;
	shl.b64 	%rd88, %rd26, 2;
	add.s64 	%rd87, %rd17, %rd88;
	ld.global.cv.u32 %r186, [%rd87];
$L__BB2_50:
	shr.u64 	%rd174, %rd15, 2;
	add.s64 	%rd27, %rd26, %rd3;
	setp.ge.u64 	%p38, %rd27, %rd174;
	@%p38 bra 	$L__BB2_52;
	shl.b64 	%rd90, %rd27, 2;
	add.s64 	%rd89, %rd17, %rd90;
	ld.global.cv.u32 %r187, [%rd89];
$L__BB2_52:
	shr.u64 	%rd169, %rd15, 2;
	setp.ge.u64 	%p67, %rd207, %rd169;
	@%p67 bra 	$L__BB2_54;
	shl.b64 	%rd92, %rd207, 2;
	add.s64 	%rd91, %rd16, %rd92;
	st.global.cs.u32 [%rd91], %r184;
$L__BB2_54:
	@%p36 bra 	$L__BB2_56;
	add.s64 	%rd168, %rd207, %rd3;
	shl.b64 	%rd94, %rd168, 2;
	add.s64 	%rd93, %rd16, %rd94;
	st.global.cs.u32 [%rd93], %r185;
$L__BB2_56:
	@%p37 bra 	$L__BB2_58;
	shl.b64 	%rd96, %rd26, 2;
	add.s64 	%rd95, %rd16, %rd96;
	st.global.cs.u32 [%rd95], %r186;
$L__BB2_58:
	@%p38 bra 	$L__BB2_60;
	shl.b64 	%rd98, %rd27, 2;
	add.s64 	%rd97, %rd16, %rd98;
	st.global.cs.u32 [%rd97], %r187;
$L__BB2_60:
	shr.u64 	%rd170, %rd15, 2;
	add.s64 	%rd207, %rd27, %rd3;
	setp.lt.u64 	%p43, %rd207, %rd170;
	@%p43 bra 	$L__BB2_44;
	bra.uni 	$L__BB2_99;
$L__BB2_23:
	setp.le.u64 	%p24, %rd15, %rd2;
	@%p24 bra 	$L__BB2_99;
	mov.u64 	%rd206, %rd2;
$L__BB2_25:
	setp.ge.u64 	%p25, %rd206, %rd15;
	@%p25 bra 	$L__BB2_27;
	add.s64 	%rd75, %rd17, %rd206;
	ld.global.cv.u8 %r107, [%rd75];
	cvt.u16.u32 	%rs40, %r107;
$L__BB2_27:
	add.s64 	%rd19, %rd206, %rd3;
	setp.ge.u64 	%p26, %rd19, %rd15;
	@%p26 bra 	$L__BB2_29;
	add.s64 	%rd76, %rd17, %rd19;
	ld.global.cv.u8 %r108, [%rd76];
	cvt.u16.u32 	%rs39, %r108;
$L__BB2_29:
	add.s64 	%rd20, %rd19, %rd3;
	setp.ge.u64 	%p27, %rd20, %rd15;
	@%p27 bra 	$L__BB2_31;
	add.s64 	%rd77, %rd17, %rd20;
	ld.global.cv.u8 %r109, [%rd77];
	cvt.u16.u32 	%rs38, %r109;
$L__BB2_31:
	add.s64 	%rd21, %rd20, %rd3;
	setp.ge.u64 	%p28, %rd21, %rd15;
	@%p28 bra 	$L__BB2_33;
	add.s64 	%rd78, %rd17, %rd21;
	ld.global.cv.u8 %r110, [%rd78];
	cvt.u16.u32 	%rs37, %r110;
$L__BB2_33:
	@%p25 bra 	$L__BB2_35;
	add.s64 	%rd79, %rd16, %rd206;
	cvt.u32.u16 	%r112, %rs40;
	and.b32  	%r111, %r112, 255;
	st.global.cs.u8 [%rd79], %r111;
$L__BB2_35:
	@%p26 bra 	$L__BB2_37;
	add.s64 	%rd80, %rd16, %rd19;
	cvt.u32.u16 	%r114, %rs39;
	and.b32  	%r113, %r114, 255;
	st.global.cs.u8 [%rd80], %r113;
$L__BB2_37:
	@%p27 bra 	$L__BB2_39;
	add.s64 	%rd81, %rd16, %rd20;
	cvt.u32.u16 	%r116, %rs38;
	and.b32  	%r115, %r116, 255;
	st.global.cs.u8 [%rd81], %r115;
$L__BB2_39:
	@%p28 bra 	$L__BB2_41;
	add.s64 	%rd82, %rd16, %rd21;
	cvt.u32.u16 	%r118, %rs37;
	and.b32  	%r117, %r118, 255;
	st.global.cs.u8 [%rd82], %r117;
$L__BB2_41:
	add.s64 	%rd206, %rd21, %rd3;
	setp.lt.u64 	%p33, %rd206, %rd15;
	@%p33 bra 	$L__BB2_25;
$L__BB2_99:
	add.s64 	%rd145, %rd14, %rd2;
	add.s64 	%rd43, %rd145, %rd15;
	setp.ge.u64 	%p64, %rd43, %rd13;
	@%p64 bra 	$L__BB2_101;
	add.s64 	%rd146, %rd11, %rd43;
	ld.global.cv.u8 %r178, [%rd146];
	add.s64 	%rd147, %rd10, %rd43;
	st.u8 	[%rd147], %r178;
$L__BB2_101:
	setp.ne.s32 	%p65, %r88, 0;
	bar.sync 	0;
	@%p65 bra 	$L__BB2_103;
	fence.acq_rel.sys;
	cvta.to.global.u64 	%rd148, %rd46;
	st.volatile.global.u64 	[%rd148+256], %rd203;
	bra.uni 	$L__BB2_103;
$L__BB2_15:
	setp.ne.s32 	%p16, %r88, 0;
	@%p16 bra 	$L__BB2_17;
	ld.param.u64 	%rd152, [tryst_standby_param_2];
	cvta.to.global.u64 	%rd63, %rd46;
	st.volatile.global.u64 	[%rd63+320], %rd152;
$L__BB2_17:
	ret;
}
)ptx";

}  // namespace tryst

#endif  // TRYST_GPU_GATHER_PTX_H_
