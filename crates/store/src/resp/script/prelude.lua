-- What a script finds, from what the machine gives: `is_over` says whether the script has to end, `random`
-- gives the next random number below one, of the generator that `seed` begins anew, `library` what a library is
-- made of, and `caught` makes of an error of the machine what scripts expect.
local is_over, random, seed, library, caught = ...

local error, pcall, rawset, select, setmetatable, tostring, type, xpcall =
    error, pcall, rawset, select, setmetatable, tostring, type, xpcall
local find, gmatch, gsub, match = string.find, string.gmatch, string.gsub, string.match
local floor, sort = math.floor, table.sort

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

-- A script that has to end must not catch that.
local function unless_over(...)
    if is_over() then
        error('it is over', 0)
    end
    return ...
end

-- As in Redis, the error of a command is its text to whoever catches it.
local function as_text(done, value, ...)
    if done then
        return done, value, ...
    end
    value = caught(value)
    if type(value) == 'table' and type(value.err) == 'string' then
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
        return handler(caught(value))
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

-- Other numbers in every run, unless a script says where they begin.
function math.random(low, high)
    local number = random()
    if not low then
        return number
    end
    local which = 2
    if not high then
        low, high, which = 1, low, 1
    end
    if low > high then
        error("bad argument #" .. which .. " to 'random' (interval is empty)", 2)
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
        -- A library is made when it is first used.
        local found = library(name)
        if found then
            rawset(_G, name, found)
            return found
        end
        error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
    end,
    __newindex = function()
        error('Attempt to modify a readonly table', 2)
    end,
})
