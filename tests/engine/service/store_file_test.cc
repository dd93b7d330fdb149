// The file of a JobStore: it outlives its processes, it is migrated, and what cannot be used is
// refused. Clocks that jump neither end leases nor keep them.
#include <fstream>

#include "engine/service/job_store.h"
#include "engine/service/store_schema.h"
#include "tests/engine/service/store_testing.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

int64_t answer_of(Database& database, const char* sql) { return run(database, sql).value(); }

TEST(StoreFile, OutlivesItsProcess) {
  const std::string path = new_file("outlives.db");
  SetClocks clocks;
  {
    JobStore store(path, {}, clocks.host());
    for (const char* id : {"a", "b"}) store.submit(job_named(id));
    EXPECT_EQ(store.claim("worker", "model")->stored.job.id, "a");
  }
  JobStore store(path, {}, clocks.host());
  EXPECT_EQ(store.find("a")->state, JobState::kRunning) << "its lease has not ended";
  EXPECT_EQ(store.events("a", 0).size(), 2u);
  EXPECT_EQ(store.claim("worker", "model")->stored.job.id, "b");
}

TEST(StoreFile, TwoStoresOfOneFileSeeEachOther) {
  const std::string path = new_file("shared.db");
  JobStore one(path), two(path);
  const int64_t before = two.version();
  one.submit(job_named("a"));
  EXPECT_NE(two.version(), before);
  const std::optional<Claim> claim = two.claim("worker", "model");
  ASSERT_TRUE(claim);
  EXPECT_FALSE(one.claim("another", "model"));
  EXPECT_EQ(one.cancel("a"), CancelAnswer::kAsked);
  EXPECT_EQ(two.renew(*claim), HoldAnswer::kCancel);
}

TEST(StoreFile, SettingTheClockNeitherEndsNorKeepsALease) {
  for (const double hours : {-1.0, 1.0}) {
    SetClocks clocks;
    JobStore store("", {}, clocks.host());
    store.submit(job_named("a"));
    NewJob waits = job_named("b");
    waits.deadline_seconds = 60;
    store.submit(waits);
    const Claim claim = *store.claim("worker", "model");
    clocks.unix_ms += static_cast<int64_t>(hours * 3600 * 1000);
    store.tidy();
    EXPECT_EQ(store.find("a")->state, JobState::kRunning) << hours;
    EXPECT_EQ(store.find("b")->state, JobState::kQueued) << hours;
    EXPECT_EQ(store.renew(claim), HoldAnswer::kHeld) << hours;
    clocks.pass(30);
    store.tidy();
    EXPECT_EQ(store.find("a")->state, JobState::kQueued) << hours;
    EXPECT_EQ(store.next_claim_ms("model"), 0) << hours;
    clocks.pass(30);
    store.tidy();
    EXPECT_EQ(store.find("b")->state, JobState::kExpired) << hours;
  }
}

TEST(StoreFile, LeasesEndWithTheHostAndDeadlinesGoOn) {
  const std::string path = new_file("boot.db");
  SetClocks clocks;
  {
    JobStore store(path, {}, clocks.host());
    store.submit(job_named("a"));
    NewJob waits = job_named("b");
    waits.deadline_seconds = 100;
    store.submit(waits);
    store.claim("worker", "model");
  }
  // The host was down for 40 s, and its clock of uptime begins anew.
  clocks.pass(40);
  clocks.boot_ms = 5000;
  clocks.boot_id = "second";
  JobStore store(path, {}, clocks.host());
  store.tidy();
  EXPECT_EQ(store.find("a")->state, JobState::kQueued);
  clocks.pass(59);
  store.tidy();
  EXPECT_EQ(store.find("b")->state, JobState::kQueued);
  clocks.pass(1);
  store.tidy();
  EXPECT_EQ(store.find("b")->state, JobState::kExpired);
}

TEST(StoreFile, ThoseWhoStateNoTimeKeepJobsAsLongAsTheOthers) {
  const std::string path = new_file("kept.db");
  SetClocks clocks;
  constexpr double kSeconds = 7200;
  const JobStore server(path, {.kept_seconds = kSeconds}, clocks.host());
  JobStore batch(path, {}, clocks.host());
  batch.submit(job_named("a"));
  EXPECT_TRUE(batch.complete(*batch.claim("worker", "model"), "{}", ""));
  EXPECT_EQ(server.find("a")->expires_ms, clocks.unix_ms + kSeconds * 1000);
}

TEST(StoreFile, AnEarlierVersionIsMigratedWithACopy) {
  const std::string path = new_file("earlier.db");
  {
    Database earlier(path);
    earlier.script(schema_steps()[0]);
    earlier.script(
        "PRAGMA application_id = 0x57656674; PRAGMA user_version = 1;"
        "INSERT INTO job(id, program, owner, priority, request, resolved, idempotency_key, "
        "request_hash, created) VALUES ('a', 'model', '', 0, '{}', '{}', '', '', 1);"
        "INSERT INTO output(job, variant, path) VALUES (1, 0, 'a.mp4')");
  }
  {
    JobStore store(path);
    EXPECT_EQ(store.find("a")->job.output, "a.mp4");
    EXPECT_TRUE(store.claim("worker", "model"));
  }
  Database now(path), copy(path + ".v1.bak");
  EXPECT_EQ(answer_of(now, "PRAGMA user_version"), std::ssize(schema_steps()));
  EXPECT_EQ(answer_of(copy, "PRAGMA user_version"), 1);
  EXPECT_EQ(answer_of(copy, "SELECT COUNT(*) FROM job"), 1);
}

TEST(StoreFile, SqlItselfRefusesIllegalChanges) {
  const std::string path = new_file("guards.db");
  {
    JobStore store(path);
    for (const char* id : {"a", "b"}) store.submit(job_named(id));
    ASSERT_TRUE(store.complete(*store.claim("worker", "model"), "{}", ""));
  }
  Database database(path);
  for (const char* sql : {"UPDATE job SET state = 'queued' WHERE id = 'a'",
                          "UPDATE job SET state = 'failed' WHERE id = 'a'",
                          "UPDATE job SET state = 'completed' WHERE id = 'b'",
                          "UPDATE job SET state = 'failed' WHERE id = 'b'"})
    expect_error(ErrorKind::kOutput, "no legal change", [&] { run(database, sql); });
  expect_error(ErrorKind::kOutput, "CHECK", [&] { run(database, "UPDATE job SET id = ''"); });
}

TEST(StoreFile, RefusesWhatItCannotUse) {
  const std::string newer = new_file("newer.db");
  { JobStore store(newer); }
  Database(newer).script("PRAGMA user_version = 99");
  expect_error(ErrorKind::kUsage, "has version 99, made by a newer Weft; legal: up to 4",
               [&] { JobStore store(newer); });

  const std::string foreign = new_file("foreign.db");
  Database(foreign).script("CREATE TABLE other (a)");
  expect_error(ErrorKind::kUsage, "another program", [&] { JobStore store(foreign); });

  const std::string text = new_file("text.db");
  std::ofstream(text) << std::string(10000, 'x');
  expect_error(ErrorKind::kUsage, "no database", [&] { JobStore store(text); });

  expect_error(ErrorKind::kOutput, "No such file or directory",
               [&] { JobStore store(testing::TempDir() + "absent/jobs.db"); });

  const std::string remote = new_file("remote.db");
  StoreHost host;
  host.network_file_system = [](const std::string& folder) {
    EXPECT_TRUE(fs::equivalent(folder, testing::TempDir()));
    return "NFS";
  };
  expect_error(ErrorKind::kUsage, "network file system (NFS)",
               [&] { JobStore store(remote, {}, host); });
  EXPECT_FALSE(fs::exists(remote));
}

TEST(StoreFile, RefusesADamagedFile) {
  const std::string path = new_file("damaged.db");
  {
    JobStore store(path);
    NewJob job = job_named("a");
    job.request = std::string(200'000, 'x');
    store.submit(job);
  }
  // The header stays whole; pages after it do not.
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(3 * 4096);
  file << std::string(5 * 4096, '\xa5');
  file.close();
  expect_error(ErrorKind::kUsage, "damaged", [&] { JobStore store(path); });
}

TEST(StoreFile, SaysThatItIsFullLockedOrReadOnly) {
  const std::string path = new_file("locked.db");
  JobStore store(path);
  Database other(path);
  other.script("PRAGMA query_only = ON");
  expect_error(ErrorKind::kOutput, "read-only", [&] { run(other, "DELETE FROM job"); });
  Database small("");
  small.script("PRAGMA max_page_count = 4; CREATE TABLE any (text)");
  expect_error(ErrorKind::kOutput, "the disk is full",
               [&] { run(small, "INSERT INTO any VALUES (?)", std::string(100'000, 'x')); });
  Database holder(path);
  Transaction held(holder);
  expect_error(ErrorKind::kOutput, "another program has locked it",
               [&] { store.submit(job_named("a")); });
  EXPECT_FALSE(store.find("a"));
}

}  // namespace
}  // namespace weft::test
