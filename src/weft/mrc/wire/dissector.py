"""A dissector for Wireshark in Lua, made from the header tables, so that a header is described in one place.

It reads both forms: as published (UDP, base transport header, ..., ICRC; the EV in source port and flow label) and the
unprivileged one of `weft.transport` (the EV in front, a sequence number and tags instead of the ICRC). Packets are
recognised by what they say, not by their port alone: sockets without privileges have any port. A packet that was cut
to its headers is shown as trimmed; one that fits no form stays what it was, plain UDP.
"""

from weft.mrc.wire import packets
from weft.mrc.wire.headers import BITS_PER_BYTE, HEADERS, Bth, Header, ImmDt, Meth, Reth, Tseth
from weft.mrc.wire.icrc import ICRC_BYTES
from weft.mrc.wire.packets import UDP_PORT, headers_of
from weft.mrc.wire.tags import HEADER_TRAILER_BYTES, TAG_BYTES

PRINTED_UDP_PORT = 4971
"""The port that the specification prints (facts section 3); dissectors accept it too."""
EV_BYTES = 4
_OPCODES = {
    packets.FIRST: "Write First",
    packets.MIDDLE: "Write Middle",
    packets.LAST: "Write Last",
    packets.LAST_IMMEDIATE: "Write Last with Immediate",
    packets.ONLY: "Write Only",
    packets.ONLY_IMMEDIATE: "Write Only with Immediate",
    packets.ACK: "ACK",
    packets.ENDPOINT_REQUEST: "Endpoint Request",
    packets.ENDPOINT_RESPONSE: "Endpoint Response",
    packets.SACK: "SACK",
    packets.NACK: "NACK",
    packets.PROBE: "Reliability Probe",
}
_VALUES = {
    "verdict": {
        packets.VERDICT_NONE: "None",
        packets.VERDICT_SKIP_ONCE: "Skip Once",
        packets.VERDICT_ALWAYS_SKIP: "Always Skip",
    },
    "reason": {
        packets.TRIMMED: "Trimmed",
        packets.TRIMMED_LASTHOP: "Trimmed at the Last Hop",
        packets.NO_BITMAP: "No Bitmap",
        packets.NO_PKT_BUFFER: "No Packet Buffer",
        packets.NO_RESOURCE: "No Resource",
        packets.PSN_OOR_WINDOW: "PSN out of Window",
        packets.UNEXP_EVENT: "Unexpected Event (fatal)",
    },
    "operation": {packets.OPERATION_PORT_STATUS: "Port Status Update", packets.OPERATION_EV_PROBE: "EV Probe"},
    "opcode": _OPCODES,
}  # fmt: skip
_HEX = {
    "key",
    "queue_pair",
    "partition",
    "port_status",
    "sack_bitmap",
    "address",
    "source_context",
    "destination_context",
}
_FIRST_DATA, _LAST_DATA = packets.FIRST, packets.ONLY_IMMEDIATE


def dissector() -> str:
    """Return the dissector's Lua."""
    orders = {opcode: ", ".join(map(_quoted, _order(opcode))) for opcode in _OPCODES}
    return "\n".join(
        (
            "-- Multipath Reliable Connection (MRC) for Wireshark and tshark. Made by `weft fabric dissector`.",
            "-- Install: copy to a folder of Lua plugins (Help > About > Folders), or tshark -X lua_script:FILE.",
            'local mrc = Proto("mrc", "Multipath Reliable Connection")',
            "local f = {}",
            *(_declaration(header) for header in HEADERS),
            *_EXTRA_FIELDS,
            "local all = {}",
            "for _, field in pairs(f) do all[#all + 1] = field end",
            "mrc.fields = all",
            "local headers = {}",
            *(_table(header) for header in HEADERS),
            "local orders = {",
            *(f"  [{opcode:#04x}] = {{{names}}}," for opcode, names in orders.items()),
            "}",
            "local names = {",
            *(f"  [{opcode:#04x}] = {_quoted(text)}," for opcode, text in _OPCODES.items()),
            "}",
            f"local EV, ICRC, TRAILER, TAG = {EV_BYTES}, {ICRC_BYTES}, {HEADER_TRAILER_BYTES}, {TAG_BYTES}",
            f"local FIRST_DATA, LAST_DATA = {_FIRST_DATA:#04x}, {_LAST_DATA:#04x}",
            f"local BTH, PARTITION = {Bth.size()}, {Bth.partition:#06x}",
            f"local PARTITION_AT, VERSION_AT = {Bth.byte_of('partition')}, {Bth.byte_of('version')}",
            f"local STAMPED_AT, STAMPED_BIT = {Bth.byte_of('timestamped')}, {1 << Bth.shift_of('timestamped'):#04x}",
            f"local PSN_AT, QP_AT = {Bth.byte_of('psn')}, {Bth.byte_of('queue_pair')}",
            f"local LENGTH_AT = {Reth.byte_of('length')}",
            f"local PORTS = {{{UDP_PORT}, {PRINTED_UDP_PORT}}}",
            _LOGIC,
        )
    )  # fmt: skip


def _order(opcode: int) -> list[str]:
    """Return the headers behind an opcode's base header; a leading "?" marks the one that the timestamp flag brings."""
    always = headers_of(Bth(opcode, queue_pair=0, psn=0))
    stamped = headers_of(Bth(opcode, queue_pair=0, psn=0, timestamped=1))
    return [_abbreviation(one) if one in always else "?" + _abbreviation(one) for one in stamped]


def _abbreviation(header: type[Header]) -> str:
    return header.__name__.lower()


def _quoted(text: str) -> str:
    return f'"{text}"'


def _declaration(header: type[Header]) -> str:
    """Return the fields of one header as Wireshark's ProtoFields."""
    short = _abbreviation(header)
    lines: list[str] = []
    for name, width in header.layout:
        if name:
            label = name.replace("_", " ").capitalize()
            lines.append(
                f'f.{short}_{name} = {_kind(name, width)}("mrc.{short}.{name}", "{label}"{_form(name, width)})'
            )
    return "\n".join(lines)


def _kind(name: str, width: int) -> str:
    """Return the ProtoField that holds so many bits."""
    if width == 1:
        return "ProtoField.bool"
    sign = "int" if width < 0 else "uint"
    room = next(size for size in (8, 16, 24, 32, 64) if abs(width) <= size)
    del name
    return f"ProtoField.{sign}{room}"


def _form(name: str, width: int) -> str:
    if width == 1:
        return ""
    values = _VALUES.get(name)
    base = "base.HEX" if name in _HEX or name == "opcode" else "base.DEC"
    if values is None:
        return f", {base}"
    return f", {base}, {{{', '.join(f'[{value}] = {_quoted(text)}' for value, text in values.items())}}}"


def _table(header: type[Header]) -> str:
    """Return a header as rows of name, first bit and width, from which the Lua below cuts every field."""
    rows: list[str] = []
    at = 0
    for name, width in header.layout:
        if name:
            short = _abbreviation(header)
            sign = "true" if width < 0 else "false"
            rows.append(f"  {{f.{short}_{name}, {at}, {abs(width)}, {sign}}},")
        at += abs(width)
    size = at // BITS_PER_BYTE
    return "\n".join(
        (f"headers.{_abbreviation(header)} = {{size = {size}, title = {_quoted(_TITLES[header.__name__])},", *rows, "}")
    )


_TITLES = {
    "Bth": "Base Transport Header",
    Meth.__name__: "Message Sequence Numbers (METH)",
    Tseth.__name__: "Timestamp (TSETH)",
    Reth.__name__: "RDMA Header (RETH)",
    ImmDt.__name__: "Immediate Data",
    "Seth": "Selective Acknowledgement (SETH)",
    "CcState": "Congestion Control State",
    "Neth": "Negative Acknowledgement (NETH)",
    "Peth": "Probe (PETH)",
    "Erth": "Endpoint Request (ERTH)",
    "Eeth": "Endpoint Response (EETH)",
    "Aeth": "Acknowledgement (AETH)",
}
_EXTRA_FIELDS = (
    'f.ev = ProtoField.uint32("mrc.ev", "Entropy value", base.HEX)',
    'f.sequence = ProtoField.uint64("mrc.sequence", "Sequence number", base.DEC)',
    'f.header_tag = ProtoField.bytes("mrc.header_tag", "Header tag")',
    'f.payload = ProtoField.bytes("mrc.payload", "Payload")',
    'f.payload_tag = ProtoField.bytes("mrc.payload_tag", "Payload tag")',
    'f.icrc = ProtoField.uint32("mrc.icrc", "ICRC", base.HEX)',
    'f.trimmed = ProtoField.bool("mrc.trimmed", "Trimmed")',
)
_LOGIC = r"""
-- Lua 5.2 has no operators for bits and 5.4 no bit32: arithmetic does for masks without gaps and for single bits.
local function low_bits(value, mask) return value % (mask + 1) end
local function has_bit(value, bit) return math.floor(value / bit) % 2 == 1 end

local ip6_flow = Field.new("ipv6.flow")
local udp_source = Field.new("udp.srcport")

-- What follows the base header at `at`; nil where these bytes are no packet of MRC. On a port that is not MRC's own,
-- the partition must be the default one, too: by chance, other traffic then looks like MRC once in billions of packets.
local function shape(buffer, at, registered)
  if buffer:len() < at + BTH then return nil end
  local opcode = buffer(at, 1):uint()
  local order = orders[opcode]
  if order == nil then return nil end
  if buffer(at + VERSION_AT, 1):bitfield(4, 4) ~= 0 then return nil end
  if not registered and buffer(at + PARTITION_AT, 2):uint() ~= PARTITION then return nil end
  local stamped = has_bit(buffer(at + STAMPED_AT, 1):uint(), STAMPED_BIT)
  local size, found = BTH, {}
  local length = 0
  for _, name in ipairs(order) do
    local optional = name:sub(1, 1) == "?"
    if optional then name = name:sub(2) end
    if not optional or stamped then
      if name == "reth" and buffer:len() >= at + size + headers.reth.size then
        length = buffer(at + size + LENGTH_AT, 4):uint()
      end
      found[#found + 1] = {name, at + size}
      size = size + headers[name].size
    end
  end
  if buffer:len() < at + size then return nil end
  local left = buffer:reported_len() - at - size
  local data = opcode >= FIRST_DATA and opcode <= LAST_DATA
  local payload = data and length or 0
  local form
  if left == payload + ICRC then form = "icrc"
  elseif left == TRAILER + payload + (payload > 0 and TAG or 0) then form = "tagged"
  elseif data and left == TRAILER then form = "tagged"; payload = -1
  elseif data and (left == 0 or left == ICRC) then form = left == 0 and "bare" or "icrc"; payload = -1
  else return nil end
  return {opcode = opcode, found = found, ends = at + size, payload = payload, form = form, start = at}
end

-- The published form begins with the base header, the unprivileged one with the EV.
local function whichever(buffer, pinfo)
  local registered = false
  for _, port in ipairs(PORTS) do
    registered = registered or pinfo.dst_port == port or pinfo.src_port == port
  end
  return shape(buffer, 0, registered) or shape(buffer, EV, registered)
end

local function add_header(tree, buffer, name, at)
  local header = headers[name]
  local branch = tree:add(mrc, buffer(at, header.size), header.title)
  for _, row in ipairs(header) do
    local field, first, width, signed = row[1], row[2], row[3], row[4]
    local byte, from = math.floor(first / 8), first % 8
    local bytes = math.floor((from + width + 7) / 8)
    local range = buffer(at + byte, bytes)
    local value
    if width > 32 then value = range:uint64()
    else
      value = range:bitfield(from, width)
      if signed and value >= 2 ^ (width - 1) then value = value - 2 ^ width end
    end
    if width == 1 then value = value == 1 end
    branch:add(field, range, value)
  end
end

local function add_trailer(tree, buffer, packet)
  local at, left = packet.ends, buffer:len()
  local function take(field, size)
    if size > 0 and at < left then tree:add(field, buffer(at, math.min(size, left - at))) end
    at = at + size
  end
  if packet.form == "tagged" then
    take(f.sequence, TAG)
    take(f.header_tag, TAG)
  end
  if packet.payload > 0 then
    take(f.payload, packet.payload)
    if packet.form == "tagged" then take(f.payload_tag, TAG) end
  end
  -- A capture may keep only the first bytes of a packet: what is not there is not shown.
  if packet.form == "icrc" and at + ICRC <= left then tree:add_le(f.icrc, buffer(at, ICRC)) end
end

function mrc.dissector(buffer, pinfo, root)
  local packet = whichever(buffer, pinfo)
  if packet == nil then return 0 end
  pinfo.cols.protocol = "MRC"
  local tree = root:add(mrc, buffer(), "Multipath Reliable Connection, " .. names[packet.opcode])
  local ev
  if packet.start > 0 then
    ev = buffer(0, EV):uint()
    tree:add(f.ev, buffer(0, EV))
  else
    -- SRv6 wraps IPv6 in IPv6: the innermost header, which comes last, is the sender's.
    local sources, flows = {udp_source()}, {ip6_flow()}
    local source, flow = sources[#sources], flows[#flows]
    ev = (flow and low_bits(flow.value, 0xffff) or 0) * 65536 + (source and source.value or 0)
    tree:add(f.ev, ev):set_generated()
  end
  add_header(tree, buffer, "bth", packet.start)
  for _, one in ipairs(packet.found) do add_header(tree, buffer, one[1], one[2]) end
  local trimmed = packet.payload < 0
  tree:add(f.trimmed, trimmed):set_generated()
  add_trailer(tree, buffer, packet)
  local psn = buffer(packet.start + PSN_AT, 3):uint()
  local pair = buffer(packet.start + QP_AT, 3):uint()
  pinfo.cols.info = string.format("%s%s PSN %d, QP 0x%06x, EV 0x%x", names[packet.opcode],
    trimmed and " (trimmed)" or "", psn, pair, ev)
  return buffer:len()
end

-- The registered port belongs to RoCEv2 as well: what is not MRC's goes on to whoever had it.
local before = {}
local gate = Proto("mrc_port", "MRC or RoCEv2")
function gate.dissector(buffer, pinfo, root)
  if whichever(buffer, pinfo) ~= nil then return mrc.dissector(buffer, pinfo, root) end
  local other = before[pinfo.dst_port] or before[pinfo.src_port]
  if other ~= nil then return other:call(buffer, pinfo, root) end
  return 0
end
local ports = DissectorTable.get("udp.port")
for _, port in ipairs(PORTS) do
  before[port] = ports:get_dissector(port)
  ports:add(port, gate)
end

mrc:register_heuristic("udp", function(buffer, pinfo, root)
  if whichever(buffer, pinfo) == nil then return false end
  mrc.dissector(buffer, pinfo, root)
  return true
end)
"""
