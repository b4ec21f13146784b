-- What a script finds, from what the machine gives: `run` runs a command and says whether its answer is
-- an error, `is_over` whether the script has to end, `random` the next random number below one,
-- of the generator that `seed` begins anew.
local run, is_over, random, seed, sha1hex, version = ...

local error, pcall, select, setmetatable, tostring, type, unpack, xpcall =
    error, pcall, select, setmetatable, tostring, type, unpack, xpcall
local find, format, gmatch, gsub, match = string.find, string.format, string.gmatch, string.gsub, string.match
local floor, sort = math.floor, table.sort

local function command(...)
    if select('#', ...) == 0 then
        return { err = 'ERR Please specify at least one argument for this redis lib call' }, true
    end
    local words = { ... }
    for i = 1, select('#', ...) do
        local kind = type(words[i])
        if kind == 'number' then
            words[i] = format('%.17g', words[i])
        elseif kind ~= 'string' then
            return { err = 'ERR Lua redis lib command arguments must be strings or integers' }, true
        end
    end
    return run(unpack(words))
end

redis = {
    REDIS_VERSION = version,
    LOG_DEBUG = 0,
    LOG_VERBOSE = 1,
    LOG_NOTICE = 2,
    LOG_WARNING = 3,
}

function redis.call(...)
    local answer, failed = command(...)
    if failed then
        error(answer, 0)
    end
    return answer
end

function redis.pcall(...)
    return (command(...))
end

local WRONG = { err = 'ERR wrong number or type of arguments' }

function redis.error_reply(...)
    local text = ...
    if select('#', ...) ~= 1 or type(text) ~= 'string' then
        return WRONG
    end
    text = gsub(text, '^%-', '', 1)
    if not find(text, ' ', 1, true) then
        text = 'ERR ' .. text
    end
    return { err = text }
end

function redis.status_reply(...)
    local text = ...
    if select('#', ...) ~= 1 or type(text) ~= 'string' then
        return WRONG
    end
    return { ok = text }
end

function redis.sha1hex(...)
    if select('#', ...) ~= 1 then
        error({ err = 'ERR wrong number of arguments' }, 0)
    end
    return sha1hex(tostring((...)))
end

-- Nobody reads it.
function redis.log(...)
    if select('#', ...) < 2 then
        error({ err = 'ERR redis.log() requires two arguments or more.' }, 0)
    end
end

-- A script that has to end must not catch that.
local function unless_over(...)
    if is_over() then
        error('it is over', 0)
    end
    return ...
end

-- As in Redis, the error of a command is its text to whoever catches it.
local function as_text(done, value, ...)
    if not done and type(value) == 'table' and type(value.err) == 'string' then
        return done, value.err
    end
    return done, value, ...
end

function _G.pcall(...)
    return unless_over(as_text(pcall(...)))
end

-- A handler runs where the error was. If that was the bound itself, nothing would count its steps.
function _G.xpcall(body, handler)
    return unless_over(xpcall(body, function(value)
        if is_over() then
            return value
        end
        return handler(value)
    end))
end

-- What runs outside of the machine's instructions, and so is not counted, is bounded by the length of
-- what it is called with. A pattern is also tried by recursion, as deep as it is long.
local WORK_MAX = 1e9
local PATTERN_MAX = 500
local SORTED_MAX = 100000

local function bounded(search, may_be_plain)
    return function(text, pattern, from, plain, ...)
        if type(text) == 'string' and type(pattern) == 'string' and not (may_be_plain and plain) then
            if #pattern > PATTERN_MAX then
                error('the pattern is too long: at most ' .. PATTERN_MAX .. ' bytes', 2)
            end
            local _, repeats = gsub(pattern, '[*+-]', '')
            local _, options = gsub(pattern, '?', '')
            local work = (#text + 1) ^ (repeats + 1) * 2 ^ options
            if work > WORK_MAX and repeats + options > 0 then
                error('the pattern may take too long on a text of ' .. #text .. ' bytes', 2)
            end
        end
        return search(text, pattern, from, plain, ...)
    end
end

string.find, string.match = bounded(find, true), bounded(match)
string.gsub, string.gmatch = bounded(gsub), bounded(gmatch)
string.gfind, string.dump = nil, nil

function table.sort(all, ...)
    if type(all) == 'table' and #all > SORTED_MAX then
        error('too many to be sorted: at most ' .. SORTED_MAX, 2)
    end
    return sort(all, ...)
end

-- The same numbers in every run, unless a script begins elsewhere.
function math.random(low, high)
    local number = random()
    if not low then
        return number
    elseif not high then
        low, high = 1, low
    end
    if low > high then
        error('interval is empty', 2)
    end
    return floor(number * (high - low + 1)) + low
end
math.randomseed = seed

for _, name in ipairs({
    'collectgarbage', 'coroutine', 'dofile', 'gcinfo', 'getfenv', 'load', 'loadfile', 'loadstring', 'module',
    'newproxy', 'package', 'print', 'require', 'setfenv',
}) do
    _G[name] = nil
end

setmetatable(_G, {
    __index = function(_, name)
        error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
    end,
    __newindex = function()
        error('Attempt to modify a readonly table', 2)
    end,
})
