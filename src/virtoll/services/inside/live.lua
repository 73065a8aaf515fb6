-- Low-latency HLS for nginx: playlists that go on by this machine's clock, and parts that are there from their time on.
-- What it must say is told, word for word, by src/virtoll/services/live.py; directives and status codes are those of
-- draft-pantos-hls-rfc8216bis-16, sections 6.2.5.2 and 6.2.6.
--
-- A request that has to wait is a timer of nginx. The playlist of an edge is made once by each worker, for all viewers.

local ROOT = "/srv/virtoll"
local SEGMENTS, SEGMENTS_WITH_PARTS = 6, 3
local MOST_WAIT_MS = 60000 -- a part that is farther away is not there

local live = {}
local streams = {} -- those that are held, by their names; each worker has its own

local function now_ms()
    ngx.update_time()
    return math.floor(ngx.now() * 1000 + 0.5)
end

local function wait_until(unix_ms)
    local left_ms = unix_ms - now_ms()
    while left_ms > 0 do
        ngx.sleep(left_ms / 1000)
        left_ms = unix_ms - now_ms()
    end
end

local function date(unix_ms)
    return os.date("!%Y-%m-%dT%H:%M:%S", math.floor(unix_ms / 1000)) .. string.format(".%03dZ", unix_ms % 1000)
end

local function seconds(milliseconds)
    return string.format("%.3f", milliseconds / 1000)
end

local function stream_of(name)
    local known = streams[name]
    if known then
        return known
    end
    local round, segment, part, rate = name:match("^(%d+)%-(%d+)%-(%d+)%-(%d+)$")
    local held = round and io.open(ROOT .. "/live/" .. name .. "/held")
    if not held then
        return nil
    end
    held:close()
    known = { round = tonumber(round), segment = tonumber(segment), part = tonumber(part), rate = tonumber(rate) }
    known.parts = known.segment / known.part
    streams[name] = known
    return known
end

-- The piece of the text that plays for `length` ms, the one with this number from 1970 on.
local function path(stream, length, number)
    local begin = (number * length) % stream.round
    local first = math.floor(begin * stream.rate / 8000)
    local last = math.floor((begin + length) * stream.rate / 8000)
    return string.format("/o/%.0f-%.0f?until=%.0f", first, last, (number + 1) * length)
end

local function text(stream, edge)
    local sequence, target = math.floor(edge / stream.parts), math.ceil(stream.segment / 1000)
    local lines = {
        "#EXTM3U",
        "#EXT-X-VERSION:9",
        "#EXT-X-TARGETDURATION:" .. target,
        "#EXT-X-SERVER-CONTROL:CAN-BLOCK-RELOAD=YES,HOLD-BACK=" .. seconds(3000 * target)
            .. ",PART-HOLD-BACK=" .. seconds(3 * stream.part),
        "#EXT-X-PART-INF:PART-TARGET=" .. seconds(stream.part),
        string.format("#EXT-X-MEDIA-SEQUENCE:%.0f", sequence - SEGMENTS),
    }
    for number = sequence - SEGMENTS, sequence do
        lines[#lines + 1] = "#EXT-X-PROGRAM-DATE-TIME:" .. date(number * stream.segment)
        local first, last = number * stream.parts, math.min((number + 1) * stream.parts, edge) - 1
        if sequence - number <= SEGMENTS_WITH_PARTS then
            for part = first, last do
                lines[#lines + 1] = "#EXT-X-PART:DURATION=" .. seconds(stream.part) .. ',URI="'
                    .. path(stream, stream.part, part) .. '",INDEPENDENT=YES'
            end
        end
        if number < sequence then
            lines[#lines + 1] = "#EXTINF:" .. seconds(stream.segment) .. ","
            lines[#lines + 1] = path(stream, stream.segment, number)
        end
    end
    lines[#lines + 1] = '#EXT-X-PRELOAD-HINT:TYPE=PART,URI="' .. path(stream, stream.part, edge) .. '"'
    return table.concat(lines, "\n") .. "\n"
end

-- How many parts there must be since 1970 before a request is answered; nil: it cannot be meant so.
local function wanted(stream, edge)
    local sequence, part = ngx.var.arg__HLS_msn, ngx.var.arg__HLS_part
    if not sequence and not part then
        return 0
    end
    sequence = sequence and tonumber(sequence:match("^%d%d?%d?%d?%d?%d?%d?%d?%d?%d?%d?%d?$"))
    local last = stream.parts - 1 -- without a part, all of the segment
    if part then
        last = tonumber(part:match("^%d%d?%d?%d?%d?%d?$"))
    end
    if not sequence or not last or sequence > math.floor(edge / stream.parts) + 1 then
        return nil
    end
    return sequence * stream.parts + math.min(last, stream.parts) + 1
end

function live.playlist()
    local stream = stream_of(ngx.var.uri:match("^/live/([%d%-]+)/index%.m3u8$") or "")
    if not stream then
        return ngx.exit(ngx.HTTP_NOT_FOUND)
    end
    local parts = wanted(stream, math.floor(now_ms() / stream.part))
    if not parts then
        return ngx.exit(ngx.HTTP_BAD_REQUEST)
    end
    wait_until(parts * stream.part)
    local edge = math.floor(now_ms() / stream.part)
    if stream.edge ~= edge then
        stream.edge, stream.text = edge, text(stream, edge)
    end
    ngx.header.content_type = "application/vnd.apple.mpegurl"
    ngx.header.cache_control = "no-cache"
    ngx.header.content_length = #stream.text
    ngx.print(stream.text)
end

-- Before nginx serves the file of a part or of a segment.
function live.await()
    local unix_ms = tonumber((ngx.var.arg_until or ""):match("^%d%d?%d?%d?%d?%d?%d?%d?%d?%d?%d?%d?%d?%d?$"))
    if not unix_ms or unix_ms > now_ms() + MOST_WAIT_MS then
        return ngx.exit(ngx.HTTP_NOT_FOUND)
    end
    wait_until(unix_ms)
end

function live.clock()
    local said = date(now_ms())
    ngx.header.content_type = "text/plain"
    ngx.header.cache_control = "no-store"
    ngx.header.content_length = #said
    ngx.print(said)
end

return live
