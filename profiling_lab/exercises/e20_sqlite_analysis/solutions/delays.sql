-- How long kernels waited from the start of the API call that launched them to their own start, by the launching thread.
-- Columns: pid, tid, kernels, mean_ns, longest_ns. Kernels without a recorded call do not count. One row per thread.
SELECT
    r.globalTid >> 24 & 0xFFFFFF AS pid,
    r.globalTid & 0xFFFFFF AS tid,
    count(*) AS kernels,
    avg(k.start - r.start) AS mean_ns,
    max(k.start - r.start) AS longest_ns
FROM CUPTI_ACTIVITY_KIND_KERNEL AS k
JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS r
    ON r.correlationId = k.correlationId
    AND r.globalTid >> 24 = k.globalPid >> 24 -- a correlation id is unique only within its process
WHERE r.eventClass != 67 -- these rows of nsys carry the call chain of a call that has a row of its own
GROUP BY r.globalTid
ORDER BY longest_ns DESC
