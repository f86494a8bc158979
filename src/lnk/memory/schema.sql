-- The index of one folder: `index.sqlite` in the engine's state. Derived, but for first-seen times and `removed`.
-- Times are microseconds since 1970 on the index's own clock, which never stands still or goes back (facts 'clock');
-- `changed` is the file's own time in seconds.

CREATE TABLE facts (name TEXT PRIMARY KEY, value ANY) STRICT, WITHOUT ROWID;

-- A row a file that was found. Waiting to be indexed: digest and left_out are both NULL.
CREATE TABLE documents (
  id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never given twice: a cursor may hold it
  path TEXT NOT NULL UNIQUE,
  name TEXT NOT NULL,                    -- what a wiki link calls it: the file's name, folded, without .md
  kind TEXT NOT NULL CHECK (kind IN ('document', 'conversation')),
  title TEXT NOT NULL,
  stamp BLOB NOT NULL,                   -- size, mtime, ctime, inode; empty where it has to be read again
  bytes INTEGER NOT NULL,
  changed INTEGER NOT NULL,
  seen INTEGER NOT NULL,                 -- first seen; 0: it was there when the folder was first read
  noted INTEGER NOT NULL,                -- when the index took in its latest change
  altered INTEGER NOT NULL,              -- when that change was made, as far as the file tells
  digest BLOB,                           -- SHA-256 of its bytes
  lines INTEGER NOT NULL DEFAULT 0,
  pages BLOB,                            -- where a document has pages: the line at which each begins, 4 bytes each
  words INTEGER NOT NULL DEFAULT 0,
  sketch BLOB,                           -- what stands for its words when copies are looked for
  left_out TEXT                          -- why it is not indexed
) STRICT;
CREATE INDEX documents_by_name ON documents (name);
CREATE INDEX documents_by_change ON documents (changed);

-- id = document id * 2^20 + number in the document. The texts of a document's chunks, put together, are its text.
CREATE TABLE chunks (
  id INTEGER PRIMARY KEY,
  first_line INTEGER NOT NULL,
  text TEXT NOT NULL
) STRICT;

-- The words of chunks under the same ids, as lnk.memory.analyse gives them. Not contentless_delete, which leaves a
-- deleted document's words in the file: here each word is taken out and overwritten ('secure-delete').
CREATE VIRTUAL TABLE words USING fts5 (
  title, body, extra, content='', tokenize="porter unicode61 remove_diacritics 2 categories 'L* N* Co Mn Mc'"
);
INSERT INTO words (words, rank) VALUES ('secure-delete', 1);
INSERT INTO words (words, rank) VALUES ('hashsize', 4194304);  -- bytes gathered before they are written: a batch's
INSERT INTO words (words, rank) VALUES ('automerge', 8);       -- parts before they are put together
CREATE VIRTUAL TABLE word_counts USING fts5vocab (words, row);

-- Links as written, and all that each may mean, best first: a name with # is tried whole, then without #heading.
CREATE TABLE links (
  document INTEGER NOT NULL,
  number INTEGER NOT NULL,
  line INTEGER NOT NULL,
  written TEXT NOT NULL,
  wiki INTEGER NOT NULL,
  PRIMARY KEY (document, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE link_targets (
  document INTEGER NOT NULL,
  number INTEGER NOT NULL,
  rank INTEGER NOT NULL,
  target TEXT NOT NULL,  -- a wiki link: the page's name or path; a Markdown link: a path in the folder
  name TEXT NOT NULL,    -- what documents.name must be for it
  PRIMARY KEY (document, number, rank)
) STRICT, WITHOUT ROWID;
CREATE INDEX link_targets_by_name ON link_targets (name);

CREATE TABLE removed (
  path TEXT PRIMARY KEY,
  title TEXT NOT NULL,
  kind TEXT NOT NULL,
  removed INTEGER NOT NULL
) STRICT;
CREATE INDEX removed_by_time ON removed (removed);

-- The models that gave vectors. Two of one name are told apart by the vector of a fixed sentence (`probe`, float32).
CREATE TABLE models (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  dims INTEGER NOT NULL,
  probe BLOB NOT NULL
) STRICT;

-- A vector a chunk, or a part of one that is too long for the model. A title has the last number that a document has.
CREATE TABLE vectors (
  id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never given twice: what is kept in memory is looked up by it
  model INTEGER NOT NULL,
  chunk INTEGER,                         -- NULL: it is gone; kept until what came in its place is embedded
  part INTEGER NOT NULL,
  mark BLOB NOT NULL,                    -- of the text that was embedded
  vector BLOB NOT NULL,                  -- int8; empty where the model does not take this text
  UNIQUE (model, chunk, part)
) STRICT;
CREATE INDEX vectors_by_mark ON vectors (mark);

-- Counts every change to chunks and vectors, whoever makes it, so that what is kept of them is known to be old.
CREATE TABLE counts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO counts VALUES ('chunks', 0), ('vectors', 0), ('vectors gone', 0);
CREATE TRIGGER chunks_added AFTER INSERT ON chunks BEGIN
  UPDATE counts SET value = value + 1 WHERE name = 'chunks';
END;
CREATE TRIGGER chunks_changed AFTER UPDATE ON chunks BEGIN
  UPDATE counts SET value = value + 1 WHERE name = 'chunks';
  UPDATE vectors SET chunk = NULL WHERE model IN (SELECT id FROM models) AND chunk IN (old.id, old.id | 1048575);
END;
CREATE TRIGGER chunks_removed AFTER DELETE ON chunks BEGIN
  UPDATE counts SET value = value + 1 WHERE name = 'chunks';
  UPDATE vectors SET chunk = NULL WHERE model IN (SELECT id FROM models) AND chunk IN (old.id, old.id | 1048575);
END;
CREATE TRIGGER vectors_added AFTER INSERT ON vectors BEGIN
  UPDATE counts SET value = value + 1 WHERE name = 'vectors';
END;
CREATE TRIGGER vectors_changed AFTER UPDATE ON vectors BEGIN
  UPDATE counts SET value = value + 1 WHERE name IN ('vectors', 'vectors gone');
END;
CREATE TRIGGER vectors_removed AFTER DELETE ON vectors BEGIN
  UPDATE counts SET value = value + 1 WHERE name IN ('vectors', 'vectors gone');
END;
