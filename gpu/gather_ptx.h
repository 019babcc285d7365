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
	.reg .b32 	%r<263>;
	.reg .b64 	%rd<271>;
	ld.param.u64 	%rd45, [tryst_gather_param_0];
	ld.param.u32 	%r131, [tryst_gather_param_1];
	mov.u32 	%r178, %ctaid.x;
	setp.ge.u32 	%p1, %r178, %r131;
	@%p1 bra 	$L__BB0_118;
	mov.u32 	%r132, %tid.x;
	cvt.u64.u32 	%rd1, %r132;
	mov.u32 	%r133, %ntid.x;
	cvt.u64.u32 	%rd2, %r133;
	cvta.to.global.u64 	%rd46, %rd45;
$L__BB0_2:
	mul.wide.u32 	%rd47, %r178, 24;
	add.s64 	%rd48, %rd46, %rd47;
	ld.global.u64 	%rd3, [%rd48+8];
	ld.global.u64 	%rd4, [%rd48];
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
	and.b64  	%rd53, %rd4, %rd52;
	sub.s64 	%rd54, %rd51, %rd53;
	and.b64  	%rd55, %rd54, %rd52;
	ld.global.u64 	%rd6, [%rd48+16];
	min.u64 	%rd7, %rd55, %rd6;
	sub.s64 	%rd56, %rd6, %rd7;
	neg.s64 	%rd57, %rd51;
	and.b64  	%rd8, %rd56, %rd57;
	setp.le.u64 	%p5, %rd7, %rd1;
	@%p5 bra 	$L__BB0_4;
	add.s64 	%rd58, %rd3, %rd1;
	ld.u8 	%rs32, [%rd58];
	add.s64 	%rd59, %rd4, %rd1;
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
	add.s64 	%rd233, %rd3, %rd7;
	shl.b64 	%rd96, %rd269, 3;
	add.s64 	%rd97, %rd233, %rd96;
	ld.v2.u32 	{%r204, %r203}, [%rd97];
$L__BB0_65:
	shr.u64 	%rd229, %rd8, 3;
	add.s64 	%rd30, %rd269, %rd2;
	setp.ge.u64 	%p39, %rd30, %rd229;
	@%p39 bra 	$L__BB0_67;
	add.s64 	%rd232, %rd3, %rd7;
	shl.b64 	%rd98, %rd30, 3;
	add.s64 	%rd99, %rd232, %rd98;
	ld.v2.u32 	{%r206, %r205}, [%rd99];
$L__BB0_67:
	shr.u64 	%rd252, %rd8, 3;
	add.s64 	%rd251, %rd269, %rd2;
	add.s64 	%rd31, %rd251, %rd2;
	setp.ge.u64 	%p40, %rd31, %rd252;
	@%p40 bra 	$L__BB0_69;
	add.s64 	%rd231, %rd3, %rd7;
	shl.b64 	%rd100, %rd31, 3;
	add.s64 	%rd101, %rd231, %rd100;
	ld.v2.u32 	{%r208, %r207}, [%rd101];
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
	add.s64 	%rd230, %rd3, %rd7;
	shl.b64 	%rd102, %rd261, 3;
	add.s64 	%rd103, %rd230, %rd102;
	ld.v2.u32 	{%r210, %r209}, [%rd103];
$L__BB0_71:
	add.s64 	%rd259, %rd269, %rd2;
	add.s64 	%rd258, %rd251, %rd2;
	add.s64 	%rd257, %rd255, %rd2;
	shr.u64 	%rd256, %rd8, 3;
	add.s64 	%rd33, %rd257, %rd2;
	setp.ge.u64 	%p42, %rd33, %rd256;
	@%p42 bra 	$L__BB0_73;
	add.s64 	%rd241, %rd3, %rd7;
	shl.b64 	%rd104, %rd33, 3;
	add.s64 	%rd105, %rd241, %rd104;
	ld.v2.u32 	{%r212, %r211}, [%rd105];
$L__BB0_73:
	shr.u64 	%rd260, %rd8, 3;
	add.s64 	%rd34, %rd33, %rd2;
	setp.ge.u64 	%p43, %rd34, %rd260;
	@%p43 bra 	$L__BB0_75;
	add.s64 	%rd240, %rd3, %rd7;
	shl.b64 	%rd106, %rd34, 3;
	add.s64 	%rd107, %rd240, %rd106;
	ld.v2.u32 	{%r214, %r213}, [%rd107];
$L__BB0_75:
	shr.u64 	%rd223, %rd8, 3;
	setp.ge.u64 	%p75, %rd269, %rd223;
	@%p75 bra 	$L__BB0_77;
	add.s64 	%rd239, %rd4, %rd7;
	shl.b64 	%rd108, %rd269, 3;
	add.s64 	%rd109, %rd239, %rd108;
	st.v2.u32 	[%rd109], {%r204, %r203};
$L__BB0_77:
	shr.u64 	%rd228, %rd8, 3;
	add.s64 	%rd227, %rd269, %rd2;
	setp.ge.u64 	%p76, %rd227, %rd228;
	@%p76 bra 	$L__BB0_79;
	add.s64 	%rd238, %rd4, %rd7;
	add.s64 	%rd226, %rd269, %rd2;
	shl.b64 	%rd110, %rd226, 3;
	add.s64 	%rd111, %rd238, %rd110;
	st.v2.u32 	[%rd111], {%r206, %r205};
$L__BB0_79:
	add.s64 	%rd244, %rd269, %rd2;
	shr.u64 	%rd243, %rd8, 3;
	add.s64 	%rd242, %rd244, %rd2;
	setp.ge.u64 	%p77, %rd242, %rd243;
	@%p77 bra 	$L__BB0_81;
	add.s64 	%rd237, %rd4, %rd7;
	add.s64 	%rd225, %rd269, %rd2;
	add.s64 	%rd224, %rd225, %rd2;
	shl.b64 	%rd112, %rd224, 3;
	add.s64 	%rd113, %rd237, %rd112;
	st.v2.u32 	[%rd113], {%r208, %r207};
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
	add.s64 	%rd236, %rd4, %rd7;
	shl.b64 	%rd114, %rd264, 3;
	add.s64 	%rd115, %rd236, %rd114;
	st.v2.u32 	[%rd115], {%r210, %r209};
$L__BB0_83:
	@%p42 bra 	$L__BB0_85;
	add.s64 	%rd235, %rd4, %rd7;
	shl.b64 	%rd116, %rd33, 3;
	add.s64 	%rd117, %rd235, %rd116;
	st.v2.u32 	[%rd117], {%r212, %r211};
$L__BB0_85:
	@%p43 bra 	$L__BB0_87;
	add.s64 	%rd234, %rd4, %rd7;
	shl.b64 	%rd118, %rd34, 3;
	add.s64 	%rd119, %rd234, %rd118;
	st.v2.u32 	[%rd119], {%r214, %r213};
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
	add.s64 	%rd120, %rd3, %rd7;
	shl.b64 	%rd121, %rd270, 4;
	add.s64 	%rd122, %rd120, %rd121;
	ld.v4.u32 	{%r242, %r241, %r240, %r239}, [%rd122];
$L__BB0_92:
	shr.u64 	%rd176, %rd8, 4;
	add.s64 	%rd38, %rd270, %rd2;
	setp.ge.u64 	%p53, %rd38, %rd176;
	@%p53 bra 	$L__BB0_94;
	add.s64 	%rd192, %rd270, %rd2;
	add.s64 	%rd123, %rd3, %rd7;
	shl.b64 	%rd124, %rd192, 4;
	add.s64 	%rd125, %rd123, %rd124;
	ld.v4.u32 	{%r246, %r245, %r244, %r243}, [%rd125];
$L__BB0_94:
	add.s64 	%rd178, %rd270, %rd2;
	shr.u64 	%rd177, %rd8, 4;
	add.s64 	%rd39, %rd178, %rd2;
	setp.ge.u64 	%p54, %rd39, %rd177;
	@%p54 bra 	$L__BB0_96;
	add.s64 	%rd191, %rd270, %rd2;
	add.s64 	%rd190, %rd178, %rd2;
	add.s64 	%rd126, %rd3, %rd7;
	shl.b64 	%rd127, %rd190, 4;
	add.s64 	%rd128, %rd126, %rd127;
	ld.v4.u32 	{%r250, %r249, %r248, %r247}, [%rd128];
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
	add.s64 	%rd129, %rd3, %rd7;
	shl.b64 	%rd130, %rd187, 4;
	add.s64 	%rd131, %rd129, %rd130;
	ld.v4.u32 	{%r254, %r253, %r252, %r251}, [%rd131];
$L__BB0_98:
	add.s64 	%rd185, %rd181, %rd2;
	shr.u64 	%rd184, %rd8, 4;
	add.s64 	%rd183, %rd270, %rd2;
	add.s64 	%rd182, %rd178, %rd2;
	add.s64 	%rd41, %rd185, %rd2;
	setp.ge.u64 	%p56, %rd41, %rd184;
	@%p56 bra 	$L__BB0_100;
	add.s64 	%rd132, %rd3, %rd7;
	shl.b64 	%rd133, %rd41, 4;
	add.s64 	%rd134, %rd132, %rd133;
	ld.v4.u32 	{%r258, %r257, %r256, %r255}, [%rd134];
$L__BB0_100:
	shr.u64 	%rd186, %rd8, 4;
	add.s64 	%rd42, %rd41, %rd2;
	setp.ge.u64 	%p57, %rd42, %rd186;
	@%p57 bra 	$L__BB0_102;
	add.s64 	%rd135, %rd3, %rd7;
	shl.b64 	%rd136, %rd42, 4;
	add.s64 	%rd137, %rd135, %rd136;
	ld.v4.u32 	{%r262, %r261, %r260, %r259}, [%rd137];
$L__BB0_102:
	shr.u64 	%rd159, %rd8, 4;
	setp.ge.u64 	%p67, %rd270, %rd159;
	@%p67 bra 	$L__BB0_104;
	add.s64 	%rd138, %rd4, %rd7;
	shl.b64 	%rd139, %rd270, 4;
	add.s64 	%rd140, %rd138, %rd139;
	st.v4.u32 	[%rd140], {%r242, %r241, %r240, %r239};
$L__BB0_104:
	shr.u64 	%rd161, %rd8, 4;
	add.s64 	%rd160, %rd270, %rd2;
	setp.ge.u64 	%p68, %rd160, %rd161;
	@%p68 bra 	$L__BB0_106;
	add.s64 	%rd198, %rd270, %rd2;
	add.s64 	%rd141, %rd4, %rd7;
	shl.b64 	%rd142, %rd198, 4;
	add.s64 	%rd143, %rd141, %rd142;
	st.v4.u32 	[%rd143], {%r246, %r245, %r244, %r243};
$L__BB0_106:
	add.s64 	%rd164, %rd270, %rd2;
	shr.u64 	%rd163, %rd8, 4;
	add.s64 	%rd162, %rd164, %rd2;
	setp.ge.u64 	%p69, %rd162, %rd163;
	@%p69 bra 	$L__BB0_108;
	add.s64 	%rd197, %rd270, %rd2;
	add.s64 	%rd196, %rd178, %rd2;
	add.s64 	%rd144, %rd4, %rd7;
	shl.b64 	%rd145, %rd196, 4;
	add.s64 	%rd146, %rd144, %rd145;
	st.v4.u32 	[%rd146], {%r250, %r249, %r248, %r247};
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
	add.s64 	%rd147, %rd4, %rd7;
	shl.b64 	%rd148, %rd193, 4;
	add.s64 	%rd149, %rd147, %rd148;
	st.v4.u32 	[%rd149], {%r254, %r253, %r252, %r251};
$L__BB0_110:
	add.s64 	%rd173, %rd270, %rd2;
	add.s64 	%rd172, %rd173, %rd2;
	add.s64 	%rd171, %rd172, %rd2;
	shr.u64 	%rd170, %rd8, 4;
	add.s64 	%rd169, %rd171, %rd2;
	setp.ge.u64 	%p71, %rd169, %rd170;
	@%p71 bra 	$L__BB0_112;
	add.s64 	%rd150, %rd4, %rd7;
	shl.b64 	%rd151, %rd41, 4;
	add.s64 	%rd152, %rd150, %rd151;
	st.v4.u32 	[%rd152], {%r258, %r257, %r256, %r255};
$L__BB0_112:
	add.s64 	%rd204, %rd270, %rd2;
	add.s64 	%rd203, %rd204, %rd2;
	add.s64 	%rd202, %rd203, %rd2;
	add.s64 	%rd201, %rd202, %rd2;
	shr.u64 	%rd200, %rd8, 4;
	add.s64 	%rd199, %rd201, %rd2;
	setp.ge.u64 	%p72, %rd199, %rd200;
	@%p72 bra 	$L__BB0_114;
	add.s64 	%rd153, %rd4, %rd7;
	shl.b64 	%rd154, %rd42, 4;
	add.s64 	%rd155, %rd153, %rd154;
	st.v4.u32 	[%rd155], {%r262, %r261, %r260, %r259};
$L__BB0_114:
	shr.u64 	%rd174, %rd8, 4;
	add.s64 	%rd270, %rd42, %rd2;
	setp.lt.u64 	%p64, %rd270, %rd174;
	@%p64 bra 	$L__BB0_90;
	bra.uni 	$L__BB0_115;
$L__BB0_6:
	add.s64 	%rd9, %rd4, %rd7;
	add.s64 	%rd10, %rd3, %rd7;
	setp.eq.s32 	%p8, %r3, 4;
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
	shl.b64 	%rd72, %rd268, 2;
	add.s64 	%rd73, %rd10, %rd72;
	ld.u32 	%r185, [%rd73];
$L__BB0_38:
	shr.u64 	%rd211, %rd8, 2;
	add.s64 	%rd20, %rd268, %rd2;
	setp.ge.u64 	%p25, %rd20, %rd211;
	@%p25 bra 	$L__BB0_40;
	shl.b64 	%rd74, %rd20, 2;
	add.s64 	%rd75, %rd10, %rd74;
	ld.u32 	%r186, [%rd75];
$L__BB0_40:
	add.s64 	%rd213, %rd268, %rd2;
	shr.u64 	%rd212, %rd8, 2;
	add.s64 	%rd21, %rd213, %rd2;
	setp.ge.u64 	%p26, %rd21, %rd212;
	@%p26 bra 	$L__BB0_42;
	add.s64 	%rd220, %rd268, %rd2;
	add.s64 	%rd219, %rd213, %rd2;
	shl.b64 	%rd76, %rd219, 2;
	add.s64 	%rd77, %rd10, %rd76;
	ld.u32 	%r187, [%rd77];
$L__BB0_42:
	add.s64 	%rd216, %rd268, %rd2;
	add.s64 	%rd215, %rd213, %rd2;
	shr.u64 	%rd214, %rd8, 2;
	add.s64 	%rd22, %rd215, %rd2;
	setp.ge.u64 	%p27, %rd22, %rd214;
	@%p27 bra 	$L__BB0_44;
	shl.b64 	%rd78, %rd22, 2;
	add.s64 	%rd79, %rd10, %rd78;
	ld.u32 	%r188, [%rd79];
$L__BB0_44:
	shr.u64 	%rd217, %rd8, 2;
	add.s64 	%rd23, %rd22, %rd2;
	setp.ge.u64 	%p28, %rd23, %rd217;
	@%p28 bra 	$L__BB0_46;
	shl.b64 	%rd80, %rd23, 2;
	add.s64 	%rd81, %rd10, %rd80;
	ld.u32 	%r189, [%rd81];
$L__BB0_46:
	shr.u64 	%rd218, %rd8, 2;
	add.s64 	%rd24, %rd23, %rd2;
	setp.ge.u64 	%p29, %rd24, %rd218;
	@%p29 bra 	$L__BB0_48;
	shl.b64 	%rd82, %rd24, 2;
	add.s64 	%rd83, %rd10, %rd82;
	ld.u32 	%r190, [%rd83];
$L__BB0_48:
	shr.u64 	%rd205, %rd8, 2;
	setp.ge.u64 	%p73, %rd268, %rd205;
	@%p73 bra 	$L__BB0_50;
	shl.b64 	%rd84, %rd268, 2;
	add.s64 	%rd85, %rd9, %rd84;
	st.u32 	[%rd85], %r185;
$L__BB0_50:
	shr.u64 	%rd208, %rd8, 2;
	add.s64 	%rd207, %rd268, %rd2;
	setp.ge.u64 	%p74, %rd207, %rd208;
	@%p74 bra 	$L__BB0_52;
	add.s64 	%rd206, %rd268, %rd2;
	shl.b64 	%rd86, %rd206, 2;
	add.s64 	%rd87, %rd9, %rd86;
	st.u32 	[%rd87], %r186;
$L__BB0_52:
	@%p26 bra 	$L__BB0_54;
	add.s64 	%rd222, %rd268, %rd2;
	add.s64 	%rd221, %rd213, %rd2;
	shl.b64 	%rd88, %rd221, 2;
	add.s64 	%rd89, %rd9, %rd88;
	st.u32 	[%rd89], %r187;
$L__BB0_54:
	@%p27 bra 	$L__BB0_56;
	shl.b64 	%rd90, %rd22, 2;
	add.s64 	%rd91, %rd9, %rd90;
	st.u32 	[%rd91], %r188;
$L__BB0_56:
	@%p28 bra 	$L__BB0_58;
	shl.b64 	%rd92, %rd23, 2;
	add.s64 	%rd93, %rd9, %rd92;
	st.u32 	[%rd93], %r189;
$L__BB0_58:
	@%p29 bra 	$L__BB0_60;
	shl.b64 	%rd94, %rd24, 2;
	add.s64 	%rd95, %rd9, %rd94;
	st.u32 	[%rd95], %r190;
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
	ld.u8 	%rs57, [%rd60];
$L__BB0_11:
	add.s64 	%rd12, %rd267, %rd2;
	setp.ge.u64 	%p11, %rd12, %rd8;
	@%p11 bra 	$L__BB0_13;
	add.s64 	%rd61, %rd10, %rd12;
	ld.u8 	%rs56, [%rd61];
$L__BB0_13:
	add.s64 	%rd13, %rd12, %rd2;
	setp.ge.u64 	%p12, %rd13, %rd8;
	@%p12 bra 	$L__BB0_15;
	add.s64 	%rd62, %rd10, %rd13;
	ld.u8 	%rs55, [%rd62];
$L__BB0_15:
	add.s64 	%rd14, %rd13, %rd2;
	setp.ge.u64 	%p13, %rd14, %rd8;
	@%p13 bra 	$L__BB0_17;
	add.s64 	%rd63, %rd10, %rd14;
	ld.u8 	%rs54, [%rd63];
$L__BB0_17:
	add.s64 	%rd15, %rd14, %rd2;
	setp.ge.u64 	%p14, %rd15, %rd8;
	@%p14 bra 	$L__BB0_19;
	add.s64 	%rd64, %rd10, %rd15;
	ld.u8 	%rs53, [%rd64];
$L__BB0_19:
	add.s64 	%rd16, %rd15, %rd2;
	setp.ge.u64 	%p15, %rd16, %rd8;
	@%p15 bra 	$L__BB0_21;
	add.s64 	%rd65, %rd10, %rd16;
	ld.u8 	%rs52, [%rd65];
$L__BB0_21:
	@%p10 bra 	$L__BB0_23;
	add.s64 	%rd66, %rd9, %rd267;
	st.u8 	[%rd66], %rs57;
$L__BB0_23:
	@%p11 bra 	$L__BB0_25;
	add.s64 	%rd67, %rd9, %rd12;
	st.u8 	[%rd67], %rs56;
$L__BB0_25:
	@%p12 bra 	$L__BB0_27;
	add.s64 	%rd68, %rd9, %rd13;
	st.u8 	[%rd68], %rs55;
$L__BB0_27:
	@%p13 bra 	$L__BB0_29;
	add.s64 	%rd69, %rd9, %rd14;
	st.u8 	[%rd69], %rs54;
$L__BB0_29:
	@%p14 bra 	$L__BB0_31;
	add.s64 	%rd70, %rd9, %rd15;
	st.u8 	[%rd70], %rs53;
$L__BB0_31:
	@%p15 bra 	$L__BB0_33;
	add.s64 	%rd71, %rd9, %rd16;
	st.u8 	[%rd71], %rs52;
$L__BB0_33:
	add.s64 	%rd267, %rd16, %rd2;
	setp.lt.u64 	%p22, %rd267, %rd8;
	@%p22 bra 	$L__BB0_9;
$L__BB0_115:
	add.s64 	%rd156, %rd7, %rd1;
	add.s64 	%rd44, %rd156, %rd8;
	setp.ge.u64 	%p65, %rd44, %rd6;
	@%p65 bra 	$L__BB0_117;
	add.s64 	%rd157, %rd3, %rd44;
	ld.u8 	%rs33, [%rd157];
	add.s64 	%rd158, %rd4, %rd44;
	st.u8 	[%rd158], %rs33;
$L__BB0_117:
	ld.param.u32 	%r177, [tryst_gather_param_1];
	mov.u32 	%r176, %nctaid.x;
	add.s32 	%r178, %r178, %r176;
	setp.lt.u32 	%p66, %r178, %r177;
	@%p66 bra 	$L__BB0_2;
$L__BB0_118:
	ret;
}
)ptx";

}  // namespace tryst

#endif  // TRYST_GPU_GATHER_PTX_H_
