-- Longhaul's own packets in Wireshark and tshark; docs/WIRE.md has every field.
--
--   tshark -X lua_script:docs/wireshark/longhaul.lua -r capture.pcapng -O longhaul,longhaul_data,longhaul_repair
--
-- In Wireshark: copy it to the folder "Personal Lua Plugins" (Help, About Wireshark, Folders).
--
-- Five parts: repair packets, RoCEv2 at other UDP ports than 4791, control frames with their records, the immediates of data packets, and the handshake on TCP.

-- Repair packets: between two shims, at RoCEv2's port, with an opcode that RoCEv2 does not use ------------------------------------------------

local repair = Proto("longhaul_repair", "Longhaul repair packet")
local REPAIR_OPCODE, REPAIR_VERSION, REPAIR_BYTES, REPORT_BYTES = 0x1f, 1, 24, 40
local repair_types = { [1] = "repair", [2] = "announcement", [3] = "report" }
local p = {
  opcode = ProtoField.uint8("longhaul_repair.opcode", "Opcode", base.HEX),
  queue_pair = ProtoField.uint24("longhaul_repair.queue_pair", "Queue pair", base.HEX),
  type = ProtoField.uint8("longhaul_repair.type", "Type", base.DEC, repair_types),
  base_psn = ProtoField.uint24("longhaul_repair.base_psn", "Base PSN"),
  version = ProtoField.uint8("longhaul_repair.version", "Version"),
  responses = ProtoField.bool("longhaul_repair.responses", "Responses", 8, nil, 0x01),
  has_first = ProtoField.bool("longhaul_repair.has_first", "Begins a message", 8, nil, 0x02),
  has_last = ProtoField.bool("longhaul_repair.has_last", "Ends a message", 8, nil, 0x04),
  is_mds = ProtoField.bool("longhaul_repair.is_mds", "MDS", 8, nil, 0x08),
  is_copy = ProtoField.bool("longhaul_repair.is_copy", "Copy of an acknowledgement", 8, nil, 0x10),
  has_tag = ProtoField.bool("longhaul_repair.has_tag", "Has a tag", 8, nil, 0x20),
  epoch = ProtoField.uint16("longhaul_repair.epoch", "Epoch"),
  block_packets = ProtoField.uint8("longhaul_repair.block_packets", "Packets of a block (r)"),
  repair_packets = ProtoField.uint8("longhaul_repair.repair_packets", "Repair packets of a block (c)"),
  count = ProtoField.uint8("longhaul_repair.count", "Packets of this block"),
  index = ProtoField.uint8("longhaul_repair.index", "Index of the sum"),
  last_length = ProtoField.uint16("longhaul_repair.last_length", "Length of the last packet"),
  digest = ProtoField.uint32("longhaul_repair.digest", "Digest", base.HEX),
  received = ProtoField.uint32("longhaul_repair.received", "Packets received"),
  lost = ProtoField.uint32("longhaul_repair.lost", "Packets lost"),
  restored = ProtoField.uint32("longhaul_repair.restored", "Packets restored"),
  bursts = ProtoField.bytes("longhaul_repair.bursts", "Bursts by length"),
  sum = ProtoField.bytes("longhaul_repair.sum", "Sum"),
  tag = ProtoField.bytes("longhaul_repair.tag", "Tag"),
  icrc = ProtoField.uint32("longhaul_repair.icrc", "ICRC", base.HEX),
}
repair.fields = p
local repair_malformed =
  ProtoExpert.new("longhaul_repair.malformed", "Not a repair packet of version 1", expert.group.MALFORMED, expert.severity.ERROR)
repair.experts = { repair_malformed }

function repair.dissector(buffer, packet, tree)
  local subtree = tree:add(repair, buffer())
  packet.cols.protocol = "Longhaul"
  packet.cols.info = "Repair packet, malformed"
  local length = buffer:len()
  local kind = length > 9 and buffer(4, 1):uint() or 0
  local has_tag = length > 9 and bit.band(buffer(9, 1):uint(), 0x20) ~= 0
  local header_bytes = kind == 3 and REPORT_BYTES or REPAIR_BYTES
  local tail = 4 + (has_tag and 8 or 0)
  if length < header_bytes + tail or not repair_types[kind] or buffer(8, 1):uint() ~= REPAIR_VERSION then
    subtree:add_proto_expert_info(repair_malformed)
    return length
  end
  subtree:add(p.opcode, buffer(0, 1))
  subtree:add(p.queue_pair, buffer(1, 3))
  subtree:add(p.type, buffer(4, 1))
  subtree:add(p.base_psn, buffer(5, 3))
  subtree:add(p.version, buffer(8, 1))
  for _, flag in ipairs({ p.responses, p.has_first, p.has_last, p.is_mds, p.is_copy, p.has_tag }) do subtree:add(flag, buffer(9, 1)) end
  subtree:add(p.epoch, buffer(10, 2))
  local space = bit.band(buffer(9, 1):uint(), 1) ~= 0 and "responses" or "requests"
  local about = string.format("QP=0x%06x %s PSN=%d", buffer(1, 3):uint(), space, buffer(5, 3):uint())
  if kind == 3 then
    subtree:add(p.received, buffer(12, 4))
    subtree:add(p.lost, buffer(16, 4))
    subtree:add(p.restored, buffer(20, 4))
    subtree:add(p.bursts, buffer(24, 16))
    packet.cols.info = string.format("Repair report: %s, %d lost, %d restored", about, buffer(16, 4):uint(), buffer(20, 4):uint())
  else
    local fields = { p.block_packets, p.repair_packets, p.count, p.index }
    for at, field in ipairs(fields) do subtree:add(field, buffer(11 + at, 1)) end
    subtree:add(p.last_length, buffer(16, 2))
    subtree:add(p.digest, buffer(20, 4))
    local code = bit.band(buffer(9, 1):uint(), 8) ~= 0 and "mds" or "xor"
    local name = kind == 2 and "Repair announcement" or string.format("Repair %d", buffer(15, 1):uint())
    packet.cols.info = string.format("%s: %s, %s:%d,%d, %d packets", name, about, code, buffer(12, 1):uint(), buffer(13, 1):uint(), buffer(14, 1):uint())
  end
  local body = length - header_bytes - tail
  if body > 0 then subtree:add(p.sum, buffer(header_bytes, body)) end
  if has_tag then subtree:add(p.tag, buffer(length - 12, 8)) end
  subtree:add(p.icrc, buffer(length - 4, 4))
  return length
end

-- Wireshark's own dissector of the port shows everything else.
local roce_port = DissectorTable.get("udp.port")
local infiniband = roce_port:get_dissector(4791)
local either = Proto("longhaul_port", "RoCEv2 and repair packets")
function either.dissector(buffer, packet, tree)
  if buffer:len() > 0 and buffer(0, 1):uint() == REPAIR_OPCODE then return repair.dissector(buffer, packet, tree) end
  if infiniband then return infiniband:call(buffer, packet, tree) end
  return 0
end
roce_port:add(4791, either)

-- RoCEv2 at other ports: software RNICs that share a host have free ports, which Wireshark does not know -----------------------------------

local roce = Proto("longhaul_roce", "RoCEv2 at a free UDP port")

-- BTH: no transport but RC, UC, UD and CNP; header version 0; the default partition; padding and ICRC behind.
local function is_roce(buffer)
  if buffer:len() >= REPAIR_BYTES + 4 and buffer:len() % 4 == 0 and buffer(0, 1):uint() == REPAIR_OPCODE then
    return repair_types[buffer(4, 1):uint()] ~= nil and buffer(8, 1):uint() == REPAIR_VERSION
  end
  if buffer:len() < 16 or buffer:len() % 4 ~= 0 then return false end
  local transport = bit.rshift(buffer(0, 1):uint(), 5)
  local is_known = transport == 0 or transport == 1 or transport == 3 or buffer(0, 1):uint() == 0x81
  return is_known and bit.band(buffer(1, 1):uint(), 0x0f) == 0 and buffer(2, 2):uint() == 0xffff
end

roce:register_heuristic("udp", function(buffer, packet, tree)
  if not is_roce(buffer) then return false end
  local known = DissectorTable.get("udp.port"):get_dissector(4791)
  if not known then return false end
  known:call(buffer, packet, tree)
  return true
end)

-- Control frames ---------------------------------------------------------------------------------------------------------------------------

local frame = Proto("longhaul", "Longhaul control frame")
local VERSION, HEADER_BYTES = 4, 68

local record_kinds = {
  [1] = "clear-to-send", [2] = "scheme", [3] = "cleared-beyond", [4] = "data-arrivals", [5] = "credit-announcement",
  [6] = "credit-grant",
}
local scheme_kinds = {
  [1] = "offer", [2] = "feedback", [3] = "done", [4] = "refused", [5] = "accepted", [6] = "withdrawn", [7] = "arrived",
  [8] = "offer-with-checksum", [9] = "offer-with-contents", [10] = "offer-with-both", [11] = "sent", [12] = "ended",
}
local reasons = {
  [1] = "other-scheme", [2] = "timed-out", [3] = "too-long", [4] = "failed", [5] = "withdrawn", [6] = "checksum",
}

local f = {
  version = ProtoField.uint8("longhaul.version", "Version"),
  wants_answer = ProtoField.bool("longhaul.wants_answer", "Wants an answer", 8, nil, 0x01),
  receiver = ProtoField.uint32("longhaul.receiver", "Receiver", base.HEX),
  sent_at = ProtoField.uint64("longhaul.sent_at", "Sent at (sender's clock)"),
  echo = ProtoField.uint64("longhaul.echo", "Echo"),
  held = ProtoField.uint64("longhaul.held", "Held (ns)"),
  consumed = ProtoField.uint64("longhaul.consumed", "Receives consumed"),
  window = ProtoField.uint32("longhaul.window", "Window (packets)"),
  cleared_through = ProtoField.uint64("longhaul.cleared_through", "Cleared through"),
  open_from = ProtoField.uint64("longhaul.open_from", "Open from"),
  sends_from = ProtoField.uint64("longhaul.sends_from", "Sends from"),
  arrivals_immediate = ProtoField.uint32("longhaul.arrivals.immediate", "Immediate", base.HEX),
  arrivals_generation = ProtoField.uint8("longhaul.arrivals.generation", "Generation"),
  arrivals_held = ProtoField.uint64("longhaul.arrivals.held", "Held (ns)"),
  arrivals_marked = ProtoField.uint64("longhaul.arrivals.marked", "Marked packets"),
  credit_wanted = ProtoField.uint64("longhaul.credit.wanted", "Wanted (bytes)"),
  credit_received = ProtoField.uint64("longhaul.credit.received", "Credit received (bytes)"),
  credit_uncredited = ProtoField.uint64("longhaul.credit.uncredited", "Sent without credit (bytes)"),
  credit_lost = ProtoField.uint64("longhaul.credit.lost", "Presumed lost (bytes)"),
  credit_granted = ProtoField.uint64("longhaul.credit.granted", "Granted (bytes)"),
  credit_recent = ProtoField.uint64("longhaul.credit.recent", "Granted recently (bytes)"),
  record_kind = ProtoField.uint16("longhaul.record.kind", "Kind", base.DEC, record_kinds),
  record_length = ProtoField.uint16("longhaul.record.length", "Length"),
  clear_number = ProtoField.uint64("longhaul.clear.number", "Message"),
  clear_address = ProtoField.uint64("longhaul.clear.address", "Address", base.HEX),
  clear_length = ProtoField.uint64("longhaul.clear.length", "Room (bytes)"),
  clear_key = ProtoField.uint32("longhaul.clear.key", "Remote key", base.HEX),
  clear_generation = ProtoField.uint8("longhaul.clear.generation", "Generation"),
  clear_is_over = ProtoField.bool("longhaul.clear.is_over", "Is over", 8, nil, 0x01),
  beyond = ProtoField.bytes("longhaul.cleared_beyond", "Cleared beyond (bitmap)"),
  unknown = ProtoField.bytes("longhaul.record.unknown", "Contents of an unknown kind"),
  scheme_kind = ProtoField.uint8("longhaul.scheme.kind", "Kind", base.DEC, scheme_kinds),
  scheme_message = ProtoField.uint64("longhaul.scheme.message", "Message"),
  offer_length = ProtoField.uint64("longhaul.offer.length", "Length (bytes)"),
  offer_offset = ProtoField.uint64("longhaul.offer.offset", "Offset of the part"),
  offer_part_bytes = ProtoField.uint64("longhaul.offer.part_bytes", "Bytes of a part"),
  offer_chunk_bytes = ProtoField.uint32("longhaul.offer.chunk_bytes", "Bytes of a chunk"),
  offer_parity_bytes = ProtoField.uint64("longhaul.offer.parity_bytes", "Bytes of parity"),
  offer_checksum = ProtoField.uint64("longhaul.offer.checksum", "Checksum", base.HEX),
  offer_contents = ProtoField.bytes("longhaul.offer.contents", "Contents"),
  scheme_name = ProtoField.string("longhaul.scheme.name", "Scheme"),
  refused_reason = ProtoField.uint8("longhaul.refused.reason", "Reason", base.DEC, reasons),
  refused_was_accepted = ProtoField.bool("longhaul.refused.was_accepted", "Was accepted before"),
  withdrawn_length = ProtoField.uint64("longhaul.withdrawn.length", "Length (bytes)"),
  ended_reason = ProtoField.uint8("longhaul.ended.reason", "Reason", base.DEC, { [1] = "quiet", [2] = "deadline" }),
  ended_is_coarse = ProtoField.bool("longhaul.ended.is_coarse", "Some packets within the ranges have arrived"),
  ended_was_accepted = ProtoField.bool("longhaul.ended.was_accepted", "Was accepted before"),
  ended_length = ProtoField.uint64("longhaul.ended.length", "Length (bytes)"),
  ended_range_count = ProtoField.uint32("longhaul.ended.range_count", "Ranges of all records"),
  ended_first_range = ProtoField.uint32("longhaul.ended.first_range", "First range of this record"),
  ended_ranges = ProtoField.bytes("longhaul.ended.ranges", "Ranges of missing packets"),
  arrived_packets = ProtoField.uint64("longhaul.arrived.packets", "Packets"),
  ack_cumulative = ProtoField.uint32("longhaul.ack.cumulative", "Cumulative"),
  ack_lost_below = ProtoField.uint32("longhaul.ack.lost_below", "Lost below"),
  ack_first = ProtoField.uint32("longhaul.ack.first", "First chunk of the words"),
  ack_words = ProtoField.bytes("longhaul.ack.words", "Words"),
  feedback = ProtoField.bytes("longhaul.feedback", "Feedback of the scheme"),
}
frame.fields = f
local cut_off = ProtoExpert.new("longhaul.cut_off", "It ends in the middle of a field", expert.group.MALFORMED, expert.severity.ERROR)
frame.experts = { cut_off }

-- Adds fields one after another. What does not fit is marked, and nothing more is added.
local function adder(buffer, tree)
  local at, is_whole = 0, true
  local function add(field, bytes)
    if not is_whole or at + bytes > buffer:len() then
      if is_whole then tree:add_proto_expert_info(cut_off) end
      is_whole = false
      return nil
    end
    local range = buffer(at, bytes)
    if field then tree:add(field, range) end
    at = at + bytes
    return range
  end
  local function rest(field)
    if is_whole and at < buffer:len() then
      tree:add(field, buffer(at))
      at = buffer:len()
    end
  end
  return add, rest
end

local function add_acknowledgement(buffer, tree)
  local words = buffer:len() - 12
  if words < 0 or words % 8 ~= 0 then
    if buffer:len() > 0 then tree:add(f.feedback, buffer()) end
    return
  end
  local add, rest = adder(buffer, tree)
  add(f.ack_cumulative, 4)
  add(f.ack_lost_below, 4)
  add(f.ack_first, 4)
  rest(f.ack_words)
end

-- The name of the record's kind, with its message: for the line of the packet.
local function add_scheme_record(buffer, tree)
  local add, rest = adder(buffer, tree)
  local kind, message = add(f.scheme_kind, 1), add(f.scheme_message, 8)
  if not (kind and message) then return "cut off" end
  kind = kind:uint()
  if kind == 1 or (kind >= 8 and kind <= 10) then
    local length = add(f.offer_length, 8)
    add(f.offer_offset, 8)
    add(f.offer_part_bytes, 8)
    add(f.offer_chunk_bytes, 4)
    add(f.offer_parity_bytes, 8)
    if kind == 8 or kind == 10 then add(f.offer_checksum, 8) end
    if kind < 9 then
      rest(f.scheme_name)
    elseif length then
      local name_at = 9 + (kind == 10 and 44 or 36)
      local name_bytes = buffer:len() - name_at - length:uint64():tonumber()
      if name_bytes > 0 then add(f.scheme_name, name_bytes) end
      if name_bytes >= 0 then rest(f.offer_contents) else tree:add_proto_expert_info(cut_off) end
    end
  elseif kind == 2 then
    if buffer:len() > 9 then add_acknowledgement(buffer(9):tvb(), tree) end
  elseif kind == 4 then
    add(f.refused_reason, 1)
    add(f.refused_was_accepted, 1)
    rest(f.scheme_name)
  elseif kind == 6 then
    add(f.withdrawn_length, 8)
  elseif kind == 7 then
    add(f.arrived_packets, 8)
  elseif kind == 12 then
    add(f.ended_reason, 1)
    add(f.ended_is_coarse, 1)
    add(f.ended_was_accepted, 1)
    add(f.ended_length, 8)
    add(f.ended_range_count, 4)
    add(f.ended_first_range, 4)
    rest(f.ended_ranges)
  elseif not scheme_kinds[kind] then
    rest(f.unknown)
  end
  return string.format("%s %s", scheme_kinds[kind] or ("kind " .. kind), tostring(message:uint64()))
end

local function add_clear_to_send(buffer, tree)
  local add = adder(buffer, tree)
  local number = add(f.clear_number, 8)
  add(f.clear_address, 8)
  add(f.clear_length, 8)
  add(f.clear_key, 4)
  add(f.clear_generation, 1)
  add(f.clear_is_over, 1)
  add(nil, 2)
  return "clear-to-send " .. (number and tostring(number:uint64()) or "cut off")
end

local function add_data_arrivals(buffer, tree)
  local add = adder(buffer, tree)
  add(f.arrivals_immediate, 4)
  add(f.arrivals_generation, 1)
  add(nil, 3)
  add(f.arrivals_held, 8)
  add(f.arrivals_marked, 8)
end

local function add_credit_announcement(buffer, tree)
  local add = adder(buffer, tree)
  local wanted = add(f.credit_wanted, 8)
  add(f.credit_received, 8)
  add(f.credit_uncredited, 8)
  add(f.credit_lost, 8)
  return "wants credit " .. (wanted and tostring(wanted:uint64()) or "cut off")
end

local function add_credit_grant(buffer, tree)
  local add = adder(buffer, tree)
  local granted = add(f.credit_granted, 8)
  add(f.credit_recent, 8)
  return "credit " .. (granted and tostring(granted:uint64()) or "cut off")
end

-- Which pairs of addresses have sent control frames: between those, immediates are ours.
local pairs_seen = {}
local function pair_of(packet)
  local one, other = tostring(packet.src), tostring(packet.dst)
  if one > other then one, other = other, one end
  return one .. " " .. other
end

function frame.init() pairs_seen = {} end

function frame.dissector(buffer, packet, tree)
  pairs_seen[pair_of(packet)] = true
  local subtree = tree:add(frame, buffer())
  local add = adder(buffer, subtree)
  add(f.version, 1)
  add(f.wants_answer, 1)
  add(nil, 2)
  add(f.receiver, 4)
  for _, field in ipairs({ f.sent_at, f.echo, f.held, f.consumed }) do add(field, 8) end
  add(f.window, 4)
  for _, field in ipairs({ f.cleared_through, f.open_from, f.sends_from }) do add(field, 8) end
  local at, names = HEADER_BYTES, {}
  while at < buffer:len() do
    if at + 4 > buffer:len() or at + 4 + buffer(at + 2, 2):uint() > buffer:len() then
      subtree:add_proto_expert_info(cut_off)
      break
    end
    local kind, length = buffer(at, 2):uint(), buffer(at + 2, 2):uint()
    local record = subtree:add(frame, buffer(at, 4 + length), "Record: " .. (record_kinds[kind] or ("kind " .. kind)))
    record:add(f.record_kind, buffer(at, 2))
    record:add(f.record_length, buffer(at + 2, 2))
    if length > 0 then
      local contents = buffer(at + 4, length):tvb()
      if kind == 1 then
        names[#names + 1] = add_clear_to_send(contents, record)
      elseif kind == 2 then
        names[#names + 1] = add_scheme_record(contents, record)
      elseif kind == 3 then
        record:add(f.beyond, contents())
      elseif kind == 4 then
        add_data_arrivals(contents, record)
      elseif kind == 5 then
        names[#names + 1] = add_credit_announcement(contents, record)
      elseif kind == 6 then
        names[#names + 1] = add_credit_grant(contents, record)
      else
        record:add(f.unknown, contents())
      end
    end
    at = at + 4 + length
  end
  packet.cols.protocol = "Longhaul"
  local shown = table.concat(names, ", ", 1, math.min(#names, 4))
  if #names > 4 then shown = shown .. string.format(", and %d more", #names - 4) end
  packet.cols.info = "Control frame" .. (#names > 0 and ": " .. shown or "")
  return buffer:len()
end

-- The payload of a SEND: version, no flag but one, two zeros, and a header's length.
local opcode_of = Field.new("infiniband.bth.opcode")
local padding_of = Field.new("infiniband.bth.padcnt")
local UC_SEND_ONLY = 0x24
frame:register_heuristic("infiniband.payload", function(buffer, packet, tree)
  local opcode = opcode_of()
  if not opcode or opcode.value ~= UC_SEND_ONLY or buffer:len() < HEADER_BYTES then return false end
  if buffer(0, 1):uint() ~= VERSION or buffer(1, 1):uint() > 1 or buffer(2, 2):uint() ~= 0 then return false end
  -- Wireshark leaves the padding at the end of what it calls the payload.
  local padding = padding_of()
  local length = buffer:len() - (padding and padding.value or 0)
  frame.dissector(buffer(0, math.max(length, HEADER_BYTES)):tvb(), packet, tree)
  return true
end)

-- Data packets -----------------------------------------------------------------------------------------------------------------------------

local data = Proto("longhaul_data", "Longhaul data packet")
data.prefs.slot_bits = Pref.uint("Bits of the slot", 10, "As the ends have agreed")
data.prefs.packet_bits = Pref.uint("Bits of the packet", 18, "As the ends have agreed; the user has the rest of the 32")
local d = {
  slot = ProtoField.uint32("longhaul_data.slot", "Slot (message number modulo their number)"),
  packet = ProtoField.uint32("longhaul_data.packet", "Packet of the message"),
  user = ProtoField.uint32("longhaul_data.user", "Fragment of the user's immediate", base.HEX),
}
data.fields = d
local immediate_of = Field.new("infiniband.immdt")
local UC_WRITE_ONLY_IMMEDIATE = 0x2b

function data.dissector(_, packet, tree)
  local opcode, immediate = opcode_of(), immediate_of()
  if not (opcode and immediate) or opcode.value ~= UC_WRITE_ONLY_IMMEDIATE or not pairs_seen[pair_of(packet)] then return end
  local range = immediate.range
  local slot_bits, packet_bits = data.prefs.slot_bits, data.prefs.packet_bits
  local user_bits = 32 - slot_bits - packet_bits
  if user_bits < 0 then return end
  local subtree = tree:add(data, range)
  local slot, number = range:bitfield(0, slot_bits), range:bitfield(slot_bits, packet_bits)
  subtree:add(d.slot, range, slot)
  subtree:add(d.packet, range, number)
  if user_bits > 0 then subtree:add(d.user, range, range:bitfield(32 - user_bits, user_bits)) end
  packet.cols.protocol = "Longhaul"
  packet.cols.info = string.format("Data: slot %d, packet %d", slot, number)
end
register_postdissector(data)

-- Handshake --------------------------------------------------------------------------------------------------------------------------------

local handshake = Proto("longhaul_handshake", "Longhaul handshake")
local kinds = { [1] = "hello", [2] = "answer", [3] = "info", [4] = "refused", [5] = "path-report" }
local refusals = { [1] = "other-scheme", [2] = "other-chunks", [3] = "wrong-token", [4] = "no-token", [255] = "other" }
local h = {
  length = ProtoField.uint32("longhaul_handshake.length", "Length"),
  version = ProtoField.uint8("longhaul_handshake.version", "Version"),
  kind = ProtoField.uint8("longhaul_handshake.kind", "kind", base.DEC, kinds),
  refusal = ProtoField.uint8("longhaul_handshake.refusal", "refusal", base.DEC, refusals),
  number = ProtoField.uint64("longhaul_handshake.number", "number"),
  text = ProtoField.string("longhaul_handshake.text", "text"),
  bytes = ProtoField.bytes("longhaul_handshake.bytes", "bytes"),
  queue_pair = ProtoField.bytes("longhaul_handshake.queue_pair", "queue_pair"),
}
handshake.fields = h
local handshake_cut_off =
  ProtoExpert.new("longhaul_handshake.cut_off", "It ends in the middle of a field", expert.group.MALFORMED, expert.severity.ERROR)
handshake.experts = { handshake_cut_off }

-- The fields that can be shown as more than bytes.
local handshake_tags = {
  [1] = { "kind", h.kind }, [2] = { "capabilities" }, [3] = { "mtu", h.number }, [4] = { "path" }, [5] = { "scheme", h.text },
  [6] = { "chunk_bytes", h.number }, [7] = { "message_bytes_max", h.number }, [8] = { "channels", h.number }, [9] = { "token" },
  [10] = { "local_address" }, [11] = { "peer_address" }, [12] = { "queue_pair", h.queue_pair }, [13] = { "refusal", h.refusal },
  [14] = { "text", h.text }, [15] = { "has_heard", h.number },
}
local info_tags = {
  [1] = { "receiver", h.number }, [2] = { "address" }, [3] = { "layout" }, [4] = { "mtu", h.number }, [5] = { "window", h.number },
  [6] = { "control" }, [7] = { "data" }, [8] = { "message_bytes_max", h.number }, [9] = { "first_number", h.number },
  [10] = { "control_version", h.number }, [11] = { "source_ports" },
  [12] = { "grants_credit", h.number },
}

-- Fields of `tag 2 · length 2 · value`, from an offset on; what the first of them says.
local function add_fields(buffer, at, tree, tags)
  local first
  while at < buffer:len() do
    if at + 4 > buffer:len() or at + 4 + buffer(at + 2, 2):uint() > buffer:len() then
      tree:add_proto_expert_info(handshake_cut_off)
      return first
    end
    local tag, length = buffer(at, 2):uint(), buffer(at + 2, 2):uint()
    local name, field = table.unpack(tags[tag] or { "unknown field " .. tag })
    if length > 0 then
      local value = buffer(at + 4, length)
      first = first or value
      local item
      if field == h.number and length <= 8 then
        item = tree:add(field, value, length == 8 and value:uint64() or UInt64(length <= 4 and value:uint() or 0))
      else
        item = tree:add(field or h.bytes, value)
      end
      item:prepend_text(name .. ", ")
      if field == h.queue_pair and length > 4 and value(0, 3):string() == "SDR" then
        add_fields(value:tvb(), 4, item, info_tags)
      end
    end
    at = at + 4 + length
  end
  return first
end

local function message_length(buffer, _, offset) return 4 + buffer(offset, 4):uint() end

local function dissect_message(buffer, packet, tree)
  local subtree = tree:add(handshake, buffer())
  subtree:add(h.length, buffer(0, 4))
  subtree:add(h.version, buffer(7, 1))
  local kind = add_fields(buffer, 8, subtree, handshake_tags)
  packet.cols.protocol = "Longhaul"
  packet.cols.info = "Handshake: " .. (kind and kinds[kind(0, 1):uint()] or "unknown")
  return buffer:len()
end

function handshake.dissector(buffer, packet, tree)
  dissect_tcp_pdus(buffer, tree, 8, message_length, dissect_message)
  return buffer:len()
end

handshake:register_heuristic("tcp", function(buffer, packet, tree)
  if buffer:len() < 8 or buffer(4, 3):string() ~= "LHC" then return false end
  handshake.dissector(buffer, packet, tree)
  packet.conversation = handshake
  return true
end)
