// SPDX-License-Identifier: Apache-2.0
// What a control plane can see of a program, in every form that P4Info has a field for. The file beside it,
// control_plane.p4info.txtpb, is what p4c 1.2.5 writes for it; the tests hold the two compilers to it.
#include <core.p4>
#include <v1model.p4>

const bit<32> CELLS = 64;

enum bit<8> kind_t { ONE = 1, TWO = 2, LAST = 255 }
enum colour_t { RED, GREEN }
type bit<9> plain_port_t;
@p4runtime_translation("example.org/port", 32) type bit<9> port_t;
@p4runtime_translation("example.org/name", string)
@p4runtime_translation_mappings({ {"default", 0}, {"blue", 7} })
type bit<10> name_t;
typedef bit<48> mac_t;

@controller_header("packet_in")
header packet_in_t { port_t ingress_port; @id(5) @brief("why") bit<4> reason; @hidden bit<3> pad; name_t vrf; bit<6> pad2; }
@controller_header("packet_out")
@brief("What a controller sends.")
header packet_out_t { port_t egress_port; bit<7> pad; }
header ethernet_t { mac_t dst; @name("from") mac_t src; bit<16> type_; }
header option_t { bit<8> a; kind_t kind; bit<8> b; }
struct learned_t { mac_t mac; port_t port; kind_t kind; bool fresh; tuple<bit<3>, bit<5>> rest; }
struct pair_t { @match(ternary) @id(7) bit<16> type_; @match(range) @brief("a range") bit<8> a; }
struct headers_t { packet_out_t out_; packet_in_t in_; ethernet_t ethernet; option_t option; option_t[2] more; }
struct metadata_t { name_t vrf; port_t port; plain_port_t plain; colour_t colour; bit<8> x; int<8> y; }

@hidden register<bit<32>>(16) unseen;
@brief("Global.") counter(CELLS, CounterType.packets_and_bytes) everywhere;

parser Parse(packet_in p, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    @id(0x5) value_set<bit<16>>(4) types;
    @brief("pairs") value_set<pair_t>(8) pairs;
    state start { p.extract(h.ethernet); transition select(h.ethernet.type_) { types: option; default: more; } }
    state more { transition select(h.ethernet.type_, h.ethernet.src[7:0]) { pairs: option; default: accept; } }
    state option { p.extract(h.option); transition accept; }
}

action drop_it(inout standard_metadata_t s) { mark_to_drop(s); }
@brief("nothing") action nothing() { }
action shared(inout metadata_t m, @id(4) bit<8> first, bit<8> second) { m.x = first ^ second; }

control Inner(inout headers_t h, inout metadata_t m)(bit<8> flavour) {
    @deprecated("since long") action set(bit<8> v) { h.option.b = v + flavour; unseen.write(0, (bit<32>) v); }
    @hidden direct_counter(CounterType.bytes) bytes_;
    @max_group_size(4) @selector_size_semantics("sum_of_members") @max_member_weight(3)
    action_selector(HashAlgorithm.crc16, 32w128, 32w14) spread;
    table inner_t {
        key = { h.option.a: exact; h.ethernet.dst: selector; h.option.kind: exact; }
        actions = { set; nothing; }
        implementation = spread;
        counters = bytes_;
        size = 12;
    }
    apply { inner_t.apply(); }
}

control Into(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    Inner(8w5) first;
    @name("again") Inner(8w6) second;
    meter(CELLS, MeterType.bytes) speed;
    direct_meter<bit<2>>(MeterType.packets) rate;
    @name(".top.cells") register<bit<48>>(CELLS) cells;
    register<int<8>>(2) signed_;
    @id(7) action forward(port_t port, @name("named") bit<5> q, bit<1> flag, kind_t kind, name_t vrf) {
        s.egress_spec = (bit<9>) port;
        m.vrf = vrf;
        m.y = flag == 1 ? 8s1 : (int<8>) (bit<8>) kind ^ (int<8>) (bit<8>) q;
    }
    action learn() { digest<learned_t>(1, { h.ethernet.src, m.port, h.option.kind, true, { 3w1, 5w2 } }); }
    action metered() { rate.read(m.x[1:0]); cells.write(0, h.ethernet.dst); }
    action only_called(inout bit<8> x, bit<8> by) { x = x + by; everywhere.count(3); }
    action unused() { h.option.a = 1; }
    @proprietary("a", 5, x) @id(0x02000abc)
    @brief("The first table.") @description("It says where packets go.")
    table forwarding {
        key = {
            h.ethernet.dst: lpm @brief("whither");
            m.port: ternary @id(9);
            m.vrf: optional @name("vrf");
            h.option.isValid(): exact;
            h.ethernet.src[15:8]: range;
            h.ethernet.src & 48w0xfff: ternary;
        }
        actions = {
            forward;
            @tableonly learn;
            @defaultonly @note[a = 1, text = "two", yes = true] drop_it(s);
            NoAction;
        }
        const default_action = drop_it(s);
        support_timeout = true;
    }
    @flags[1, "x", 2 + 3, false]
    table meters_t {
        key = { m.plain: exact; }
        actions = { metered; @x shared(m); nothing; }
        default_action = shared(m, 1, 0x0a);
        meters = rate;
        size = 0;
    }
    @hidden table hidden_t { actions = { nothing; } default_action = nothing(); }
    table constant_t {
        key = { h.option.kind: exact; }
        actions = { nothing; unused; }
        const entries = { kind_t.ONE: nothing(); }
        @name("held") implementation = action_profile(32w9);
    }
    table never_applied { actions = { unused; } default_action = unused(); }
    apply {
        first.apply(h, m);
        only_called(m.x, 3);
        if (forwarding.apply().hit) { meters_t.apply(); }
        hidden_t.apply();
        constant_t.apply();
        second.apply(h, m);
        speed.execute_meter((bit<32>) m.x, m.x);
        signed_.write(0, m.y);
        s.priority = s.priority + (bit<3>) m.x[2:0];
    }
}

control Out(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    table copies { key = { s.egress_rid: exact; } actions = { drop_it(s); } size = 1 << 6; }
    apply { copies.apply(); }
}

control NoCheck(inout headers_t h, inout metadata_t m) { apply { } }
control Deparse(packet_out p, in headers_t h) { apply { p.emit(h); } }

@pkginfo(name="control_plane.p4", version="3")
@pkginfo_more("x") @brief("All of it.")
@platform_property(multicast_group_table_size = 128)
V1Switch(Parse(), NoCheck(), Into(), Out(), NoCheck(), Deparse()) main;
