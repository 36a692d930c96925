-- For how long each GPU of a process copied, and for how much of that time a kernel ran beside the copy.
-- Columns: pid, device, copy_ns, hidden_ns. One row per GPU that copied. Time is counted once, however much runs in it.
SELECT
    c.globalPid / 0x1000000 AS pid,
    c.deviceId AS device,
    sum(c.end - c.start) AS copy_ns,
    sum(max(0, min(c.end, k.end) - max(c.start, k.start))) AS hidden_ns
FROM CUPTI_ACTIVITY_KIND_MEMCPY AS c
JOIN CUPTI_ACTIVITY_KIND_KERNEL AS k ON k.deviceId = c.deviceId AND k.start < c.end AND k.end > c.start
GROUP BY c.globalPid, c.deviceId
