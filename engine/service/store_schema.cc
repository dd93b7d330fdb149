#include "engine/service/store_schema.h"

#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

namespace weft {
namespace {

namespace fs = std::filesystem;

// Leases, pauses and deadlines are in ms of CLOCK_BOOTTIME under the boot id of the table `store`,
// other times in ms of Unix time. `spent` counts the attempts that count against the limit.
constexpr const char* kTables = R"sql(
CREATE TABLE store (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE job (
  seq INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE CHECK (id <> ''),
  program TEXT NOT NULL,
  owner TEXT NOT NULL,
  state TEXT NOT NULL DEFAULT 'queued' CHECK
    (state IN ('queued', 'running', 'completed', 'failed', 'cancelled', 'expired')),
  priority INTEGER NOT NULL,
  attempt INTEGER NOT NULL DEFAULT 0,
  spent INTEGER NOT NULL DEFAULT 0,
  worker TEXT NOT NULL DEFAULT '',
  lease_until INTEGER NOT NULL DEFAULT 0,
  not_before INTEGER NOT NULL DEFAULT 0,
  deadline INTEGER NOT NULL DEFAULT 0,
  deadline_unix INTEGER NOT NULL DEFAULT 0,
  cancel_requested INTEGER NOT NULL DEFAULT 0 CHECK (cancel_requested IN (0, 1)),
  request TEXT NOT NULL,
  resolved TEXT NOT NULL,
  idempotency_key TEXT NOT NULL,
  request_hash TEXT NOT NULL,
  progress TEXT NOT NULL DEFAULT '',
  error TEXT NOT NULL DEFAULT '',
  warnings TEXT NOT NULL DEFAULT '',
  created INTEGER NOT NULL,
  started INTEGER NOT NULL DEFAULT 0,
  finished INTEGER NOT NULL DEFAULT 0,
  expires INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX job_state ON job(state);
CREATE INDEX job_queue ON job(program, priority DESC, seq) WHERE state = 'queued';
CREATE INDEX job_owner ON job(owner) WHERE state = 'queued';
CREATE INDEX job_deadline ON job(deadline) WHERE state = 'queued' AND deadline > 0;
CREATE INDEX job_lease ON job(lease_until) WHERE state = 'running';
CREATE INDEX job_expires ON job(expires) WHERE expires > 0;
CREATE TABLE attempt (
  job INTEGER NOT NULL REFERENCES job(seq) ON DELETE CASCADE,
  n INTEGER NOT NULL,
  worker TEXT NOT NULL,
  started INTEGER NOT NULL,
  ended INTEGER NOT NULL DEFAULT 0,
  outcome TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (job, n)
) STRICT, WITHOUT ROWID;
CREATE TABLE event (
  job INTEGER NOT NULL REFERENCES job(seq) ON DELETE CASCADE,
  n INTEGER NOT NULL,
  at INTEGER NOT NULL,
  type TEXT NOT NULL,
  data TEXT NOT NULL,
  PRIMARY KEY (job, n)
) STRICT, WITHOUT ROWID;
CREATE TABLE idempotency (
  owner TEXT NOT NULL,
  key TEXT NOT NULL,
  request_hash TEXT NOT NULL,
  job INTEGER NOT NULL REFERENCES job(seq) ON DELETE CASCADE,
  expires INTEGER NOT NULL,
  PRIMARY KEY (owner, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_job ON idempotency(job);
CREATE INDEX idempotency_expires ON idempotency(expires);
CREATE TABLE output (
  job INTEGER NOT NULL REFERENCES job(seq) ON DELETE CASCADE,
  variant INTEGER NOT NULL,
  path TEXT NOT NULL,
  result TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (job, variant)
) STRICT, WITHOUT ROWID;
)sql";

constexpr const char* kGuards = R"sql(
CREATE TRIGGER job_begins BEFORE INSERT ON job WHEN NEW.state <> 'queued'
BEGIN SELECT RAISE(ABORT, 'a job begins as queued'); END;
CREATE TRIGGER job_changes BEFORE UPDATE OF state ON job
WHEN NOT ((OLD.state = 'queued' AND NEW.state IN ('running', 'cancelled', 'expired')) OR
  (OLD.state = 'running' AND NEW.state IN ('queued', 'completed', 'failed', 'cancelled')))
BEGIN SELECT RAISE(ABORT, 'no legal change of the state of a job'); END;
)sql";

// Keys live as long as their jobs.
constexpr const char* kClients = R"sql(
ALTER TABLE job ADD COLUMN client TEXT NOT NULL DEFAULT '';
DROP INDEX idempotency_expires;
ALTER TABLE idempotency DROP COLUMN expires;
INSERT OR IGNORE INTO store VALUES ('kept_ms', '86400000');
ALTER TABLE job ADD COLUMN discarded INTEGER NOT NULL DEFAULT 0 CHECK (discarded IN (0, 1));
)sql";

// The places of jobs that were removed, for clients that list jobs from one of them on.
constexpr const char* kGone = R"sql(
CREATE TABLE gone (
  n INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  seq INTEGER NOT NULL
) STRICT;
CREATE TRIGGER job_goes AFTER DELETE ON job
BEGIN
  INSERT OR REPLACE INTO gone(id, seq) VALUES (OLD.id, OLD.seq);
  DELETE FROM gone WHERE n <= (SELECT MAX(n) FROM gone) - 10000;
END;
)sql";

constexpr const char* kSteps[] = {kTables, kGuards, kClients, kGone};
constexpr int64_t kProgramId = 0x57656674;  // "Weft"

int64_t clock_ms(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return int64_t{time.tv_sec} * 1000 + time.tv_nsec / 1'000'000;
}

std::string kernel_boot_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

std::string network_file_system(const std::string& folder) {
  constexpr struct {
    uint32_t magic;
    const char* name;
  } kKinds[] = {{0x6969, "NFS"},      {0xff534d42, "CIFS"},   {0xfe534d42, "SMB"},
                {0x517b, "SMB"},      {0x00c36400, "Ceph"},   {0x0bd00bd0, "Lustre"},
                {0x47504653, "GPFS"}, {0x19830326, "BeeGFS"}, {0x5346414f, "AFS"},
                {0x01161970, "GFS2"}, {0x7461636f, "OCFS2"},  {0x73757245, "Coda"},
                {0x65735546, "FUSE"}, {0x01021997, "9P"}};
  struct statfs found {};
  if (statfs(folder.c_str(), &found) != 0) return "";  // opening it will say why
  for (const auto& kind : kKinds)
    if (static_cast<uint32_t>(found.f_type) == kind.magic) return kind.name;
  return "";
}

int64_t version_of(Database& database) { return *run(database, "PRAGMA user_version"); }

// Another process that opens the file at the same time holds it for a moment, for which SQLite
// does not wait here.
void use_write_ahead_log(Database& database) {
  constexpr int kTries = 100;
  for (int tried = 1;; ++tried) try {
      run(database, "PRAGMA journal_mode = WAL");
      return;
    } catch (const DatabaseError& error) {
      if (!error.locked() || tried == kTries) throw;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
}

void refuse_others(Database& database) {
  // One statement sees one moment; another process may make the tables now.
  Query query(database,
              "SELECT user_version, application_id, (SELECT COUNT(*) FROM sqlite_schema) "
              "FROM pragma_user_version, pragma_application_id");
  CHECK(query.next(), database.path());
  const int64_t version = query.integer(0), known = std::ssize(kSteps);
  const std::string where = "the store '" + database.path() + "' ";
  const bool foreign = version == 0 ? query.integer(2) > 0 : query.integer(1) != kProgramId;
  if (foreign)
    throw Error(ErrorKind::kUsage,
                where + "is a database of another program; legal: a new file, or one of Weft's");
  if (version > known)
    throw Error(ErrorKind::kUsage, where + "has version " + std::to_string(version) +
                                       ", made by a newer Weft; legal: up to " +
                                       std::to_string(known));
}

void check_pages(Database& database) {
  Query check(database, "PRAGMA quick_check(1)");
  std::string found = check.next() ? check.text(0) : "";
  std::ranges::replace(found, '\n', ' ');
  if (found != "ok")
    throw Error(ErrorKind::kUsage, "the store '" + database.path() + "' is damaged: " + found +
                                       "; move it away, or put a copy in its place");
}

// The copy takes its name in one step, so that of several processes each may make it.
void back_up(Database& database, int64_t version) {
  const std::string copy = database.path() + ".v" + std::to_string(version) + ".bak";
  const std::string made = copy + "." + std::to_string(getpid());
  fs::remove(made);
  run(database, "VACUUM INTO ?", made);
  fs::rename(made, copy);
}

void migrate(Database& database) {
  const int64_t known = std::ssize(kSteps);
  const int64_t found = version_of(database);
  if (found == known) return;
  if (found > 0 && !database.path().empty()) back_up(database, found);
  Transaction transaction(database);
  // Another process may have done it meanwhile.
  for (int64_t version = version_of(database); version < known; ++version)
    database.script(kSteps[version]);
  database.script("PRAGMA application_id = " + std::to_string(kProgramId) +
                  "; PRAGMA user_version = " + std::to_string(known));
  transaction.commit();
}

// All leases and pauses end where the host has started again; deadlines go on.
void adopt_boot(Database& database, const StoreHost& host) {
  const auto stored = [&] {
    Query query(database, "SELECT value FROM store WHERE name = 'boot_id'");
    return query.next() ? query.text(0) : "";
  };
  if (stored() == host.boot_id) return;
  Transaction transaction(database);
  if (stored() == host.boot_id) return;
  run(database, "UPDATE job SET lease_until = 0 WHERE state = 'running'");
  run(database, "UPDATE job SET not_before = 0 WHERE state = 'queued'");
  run(database, "UPDATE job SET deadline = MAX(1, deadline_unix - ?) WHERE deadline > 0",
      host.unix_ms() - host.boot_ms());
  run(database, "INSERT OR REPLACE INTO store VALUES ('boot_id', ?)", host.boot_id);
  transaction.commit();
}

void refuse_network(const std::string& path, const StoreHost& host) {
  const std::string folder = fs::weakly_canonical(fs::absolute(path)).parent_path().string();
  const std::string kind = host.network_file_system(folder);
  if (!kind.empty())
    throw Error(ErrorKind::kUsage, "the store '" + path + "' lies on a network file system (" +
                                       kind +
                                       "), which breaks SQLite's locks; legal: a local disk");
}

}  // namespace

StoreHost complete_host(StoreHost host) {
  if (!host.unix_ms) host.unix_ms = [] { return clock_ms(CLOCK_REALTIME); };
  if (!host.boot_ms) host.boot_ms = [] { return clock_ms(CLOCK_BOOTTIME); };
  if (host.boot_id.empty()) host.boot_id = kernel_boot_id();
  if (!host.network_file_system) host.network_file_system = network_file_system;
  return host;
}

std::span<const char* const> schema_steps() { return kSteps; }

std::unique_ptr<Database> open_store(const std::string& path, const StoreHost& host) {
  if (!path.empty()) refuse_network(path, host);
  auto database = std::make_unique<Database>(path);
  try {
    refuse_others(*database);
    if (!path.empty()) {
      use_write_ahead_log(*database);
      check_pages(*database);
    }
    database->script(
        "PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA cache_size = -512");
    migrate(*database);
    adopt_boot(*database, host);
  } catch (const DatabaseError& error) {
    if (!error.damaged()) throw;
    throw Error(ErrorKind::kUsage,
                std::string(error.what()) + "; legal: a new file, or one that Weft made");
  }
  return database;
}

}  // namespace weft
