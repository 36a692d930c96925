-- Launches and GPU time of every kernel, by its full (demangled) name.
-- Columns: name, launches, total_ns. One row per name.
SELECT
    shortName AS name,
    count(*) AS launches,
    sum(end - start) AS total_ns
FROM CUPTI_ACTIVITY_KIND_KERNEL
GROUP BY shortName
ORDER BY total_ns DESC
