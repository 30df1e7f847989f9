-- Packed directories that jobs name. An upload under way has a name that no URI can have, and its pieces take the
-- real one when all of them are there: what has a real name is complete.

-- name: BeginPackage :exec
INSERT INTO packages (name, size, used_at) VALUES (@name, 0, @now);

-- name: AddPiece :execrows
-- Nothing is added to an upload that was cleared away as given up.
WITH upload AS (UPDATE packages p SET size = p.size + length(@data::bytea), used_at = @now WHERE p.name = @name AND NOT p.complete RETURNING p.name)
INSERT INTO package_pieces (name, n, data) SELECT upload.name, @n::integer, @data::bytea FROM upload;

-- name: CompletePackage :execrows
-- Of several uploads of one name the first to be complete stays.
INSERT INTO packages (name, size, complete, used_at) SELECT @name::text, p.size, true, @now FROM packages p WHERE p.name = @upload::text
ON CONFLICT (name) DO NOTHING;

-- name: MovePieces :exec
-- Only the names change: what the pieces hold stays where it is.
UPDATE package_pieces SET name = @name WHERE name = @upload::text;

-- name: DropPackage :exec
DELETE FROM packages WHERE name = @name;

-- name: PackageSize :one
SELECT size, used_at FROM packages WHERE name = @name AND complete;

-- name: UsePackage :exec
UPDATE packages SET used_at = @now WHERE name = @name AND complete;

-- name: Piece :one
SELECT data FROM package_pieces WHERE name = @name AND n = @n;

-- name: PrunePackages :execrows
-- Uploads that were given up, and packages that nobody used for long and that neither a live job nor a cluster names.
-- No character of a name is one that JSON would escape.
DELETE FROM packages p
WHERE (NOT p.complete AND p.used_at < @abandoned::timestamptz)
   OR (p.complete AND p.used_at < @unused::timestamptz
       AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.ended_at IS NULL AND strpos(j.runtime_env::text || coalesce(j.merged_env::text, ''), p.name) > 0)
       AND NOT EXISTS (SELECT 1 FROM clusters c WHERE strpos(c.spec::text, p.name) > 0));
