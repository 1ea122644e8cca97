-- SPDX-License-Identifier: Apache-2.0
-- Names the packets of NetFold in Wireshark and tshark, behind their own dissection of RoCEv2:
--
--      tshark -X lua_script:netfold.lua -r run.pcapng -Y 'netfold.role == "result"'
--
-- What a queue pair means stands in the description of the interface (topo/captures/capture.py): a line for both ends, then one
-- for each meaning, with tabs between queue pair, operation, job, tree, stream, slots, direction and who.

local netfold = Proto("netfold", "NetFold")

local fields = {
    role = ProtoField.string("netfold.role", "Role"),
    job = ProtoField.string("netfold.job", "Job"),
    tree = ProtoField.string("netfold.tree", "Tree (its root)"),
    stream = ProtoField.string("netfold.stream", "Stream"),
    operation = ProtoField.string("netfold.operation", "Operation"),
    slot = ProtoField.uint32("netfold.slot", "Slot of the job's range"),
    psn = ProtoField.uint32("netfold.psn", "PSN"),
    who = ProtoField.string("netfold.who", "From or to"),
    folded = ProtoField.bool("netfold.folded", "Made by a switch (TTL 255)"),
}
netfold.fields = fields

local bth_opcode, bth_qp, bth_psn = Field.new("infiniband.bth.opcode"), Field.new("infiniband.bth.destqp"),
    Field.new("infiniband.bth.psn")
local bth_pkey, syndrome = Field.new("infiniband.bth.p_key"), Field.new("infiniband.aeth.syndrome")
local reth_length = Field.new("infiniband.reth.dmalen")
local described, ip_ttl, ip_dst = Field.new("frame.interface_description"), Field.new("ip.ttl"), Field.new("ip.dst")

local OPERATIONS = { [0] = "SUM32", "MAX32", "SUM16", "SUM8", "SAT32" }
local ACKNOWLEDGE, WRITE_ONLY, OUR_PARTITION = 0x11, 0x0a, 0x8001
local ROUTERS, PROBE_QP, RESULT_TTL = "224.0.0.2", 1, 255

local plans = {}        -- meanings by queue pair, by the description that has them

local function plan_of(text)
    local known = plans[text]
    if known then
        return known
    end
    known = {}
    for line in text:gmatch("[^\n]+") do
        local qp, operation, job, tree, stream, slots, way, who = line:match(
            "^(%d+)\t([^\t]*)\t([^\t]*)\t([^\t]*)\t([^\t]*)\t(%d+)\t(%a+)\t(.*)$")
        if qp then
            local use = { job = job, tree = tree, stream = stream, slots = tonumber(slots), up = way == "up", who = who }
            if operation == "-" then
                for offset, name in pairs(OPERATIONS) do
                    known[tonumber(qp) + offset] = setmetatable({ operation = name }, { __index = use })
                end
            else
                use.operation = operation
                known[tonumber(qp)] = use
            end
        end
    end
    plans[text] = known
    return known
end

local function value(field)
    local found = field()
    return found and found.value
end

function netfold.dissector(_, pinfo, root)
    local opcode, qp, psn = value(bth_opcode), value(bth_qp), value(bth_psn)
    local text = value(described)
    if not opcode or not qp or not text or not text:find("^netfold 1\t") then
        return
    end
    local use, ttl = plan_of(text)[qp], value(ip_ttl)
    local role
    if qp == PROBE_QP and tostring(value(ip_dst)) == ROUTERS then
        role = "probe"
    elseif opcode == ACKNOWLEDGE then
        local said = value(syndrome) or 0
        role = said >= 0x60 and "NAK" or said >= 0x20 and "RNR NAK" or "acknowledgement"
    elseif opcode == WRITE_ONLY and value(bth_pkey) == OUR_PARTITION and value(reth_length) == 0 then
        role = "presence"
    elseif use then
        role = use.up and "contribution" or ttl == RESULT_TTL and "result" or "routed, not folded"
    else
        return          -- not of a job that the plan knows
    end
    local tree = root:add(netfold, "NetFold, " .. role)
    tree:add(fields.role, role)
    tree:add(fields.psn, psn)
    tree:add(fields.folded, ttl == RESULT_TTL)
    local shown = "NetFold " .. role
    if use then
        tree:add(fields.job, use.job)
        tree:add(fields.tree, use.tree)
        tree:add(fields.stream, use.stream)
        tree:add(fields.operation, use.operation)
        tree:add(fields.slot, psn % use.slots)
        tree:add(fields.who, use.who)
        shown = string.format("%s %s %s, tree %s, slot %d, %s", shown, use.up and "of" or "to", use.who, use.tree,
                              psn % use.slots, use.operation)
    end
    pinfo.cols.info:append("  " .. shown)
end

register_postdissector(netfold)
