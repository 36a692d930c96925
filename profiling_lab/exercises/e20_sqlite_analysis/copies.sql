-- Copies by kind: how many, how many bytes, and the bandwidth of all of them together.
-- Columns: kind (as in ENUM_CUDA_MEMCPY_OPER.label), copies, bytes, gb_per_s (10^9 bytes per second). One row per kind.
SELECT
    CASE copyKind WHEN 1 THEN 'Host-to-Device' WHEN 2 THEN 'Device-to-Host' ELSE 'Device-to-Device' END AS kind,
    count(*) AS copies,
    sum(bytes) AS bytes,
    avg(bytes * 1.0 / (end - start)) AS gb_per_s
FROM CUPTI_ACTIVITY_KIND_MEMCPY
GROUP BY kind
ORDER BY bytes DESC
