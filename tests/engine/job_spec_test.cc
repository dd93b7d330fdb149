// The one form of a job: what is written reads back the same, and what is illegal is refused with
// the field, its value and the legal ones.
#include "engine/job/job_spec.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/generation/generator.h"
#include "tests/engine/small_job.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

using nlohmann::json;

std::string label(const std::string& field) { return "line 3: " + field; }

JobSpec read(const json& object, JobSpec job = {}) {
  read_job(object, label, job);
  return job;
}

std::string spec_refusal(const json& object, const JobSpec& job = {}) {
  return error_of([&] { read(object, job); }, ErrorKind::kUsage);
}

const json kWhole{{"schema", "weft.job/v1"},
                  {"id", "shot-1"},
                  {"output", "act1/{id}.mp4"},
                  {"prompt", "größer, \"red\" ball"},
                  {"negative_prompt", ""},
                  {"expanded_from", "ball"},
                  {"width", 832},
                  {"height", 480},
                  {"num_frames", 81},
                  {"round_frames", true},
                  {"fps", 12.5},
                  {"steps", 20},
                  {"guidance_scale", 3.5},
                  {"guidance_scale_2", 2.0},
                  {"flow_shift", 2.5},
                  {"solver", "dpmpp-original"},
                  {"seed", 18446744073709551615u},
                  {"rng", "torch-cpu"},
                  {"method", "clips:window=8,bias=2.5"},
                  {"lora", "/loras/style.safetensors:0.8,/loras/fast.safetensors:1:high"},
                  {"transformer", "/files/high.safetensors"},
                  {"transformer_2", "/files/low.gguf"},
                  {"text_encoder", "/files/umt5.safetensors"},
                  {"text_encoder_2", "/files/clip_l.safetensors"},
                  {"tokenizer", "/files/spiece.model"},
                  {"tokenizer_2", "/files/vocab.json"},
                  {"vae", "/files/vae.safetensors"},
                  {"image_encoder", "/files/clip.safetensors"},
                  {"noise", "iid"},
                  {"image", "/a/first.png"},
                  {"image_sha256", std::string(64, 'a')},
                  {"last_image", "/a/last.png"},
                  {"last_image_sha256", std::string(64, '0')},
                  {"image_fit", "contain"},
                  {"reference", {"/a/hat, red.png", "/a/coat.webp"}},
                  {"reference_sha256", {std::string(64, 'c'), std::string(64, 'd')}},
                  {"audio", "/a/talk.wav"},
                  {"audio_sha256", std::string(64, 'b')},
                  {"prompt_schedule", {{{"at", 2.5}, {"prompt", "a blue square"}}}}};

TEST(JobSpec, WhatIsWrittenReadsBackTheSame) {
  EXPECT_EQ(to_json(read(kWhole)), kWhole);
  json other{{"schema", "weft.job/v1"}, {"prompt", "x"}, {"seconds", 2.5},
             {"sigmas", {0.9, 0.25}},   {"steps", 2},    {"rng", "portable"}};
  EXPECT_EQ(to_json(read(other)), other);
  const json endless{
      {"schema", "weft.job/v1"}, {"prompt", "x"}, {"endless", true}, {"rng", "portable"}};
  EXPECT_EQ(to_json(read(endless)), endless);
  EXPECT_EQ(to_json(JobSpec{}),
            (json{{"schema", kJobSchema}, {"prompt", ""}, {"rng", "portable"}}));
  const json displaced{{"schema", "weft.job/v1"},
                       {"prompt", "x"},
                       {"rng", "portable"},
                       {"method", "pcpp:patches=4,window=0.5"},
                       {"resync_every", 4}};
  EXPECT_EQ(to_json(read(displaced)).text("method"), "pcpp:patches=4,window=0.5,resync=4");
  const json cached{{"schema", "weft.job/v1"},
                    {"prompt", "x"},
                    {"rng", "portable"},
                    {"cache", "first-block:0.08"},
                    {"skipped_steps", {2, 3}}};
  EXPECT_EQ(to_json(read(cached)), cached);
  const json preset{{"schema", "weft.job/v1"}, {"prompt", "x"},        {"rng", "portable"},
                    {"preset", "distill-4"},   {"steps", 4},           {"guidance_scale", 1},
                    {"flow_shift", 5},         {"solver", "distill-4"}};
  EXPECT_EQ(to_json(read({{"prompt", "x"}, {"preset", "distill-4"}})), preset);
  // Every field of the form is in one of them, but for the size, which is read as its sides.
  for (const JobField& field : job_fields())
    EXPECT_TRUE(kWhole.contains(field.name) || other.contains(field.name) ||
                endless.contains(field.name) || displaced.contains(field.name) ||
                cached.contains(field.name) || preset.contains(field.name) ||
                std::string(field.name) == "size")
        << field.name;
}

TEST(JobSpec, NoLoraIsNotAnOpenOne) {
  EXPECT_FALSE(read({{"prompt", "x"}}).request.loras);
  for (const char* none : {"", "none"}) {
    const JobSpec job = read({{"prompt", "x"}, {"lora", none}});
    ASSERT_TRUE(job.request.loras) << none;
    EXPECT_TRUE(job.request.loras->empty()) << none;
    EXPECT_EQ(to_json(job).text("lora"), "none");
  }
}

// A preset is a whole: beside it no field has another value, in whatever object of a job it comes.
TEST(JobSpec, PresetsStandForTheirFields) {
  JobSpec job = read({{"prompt", "x"}, {"steps", 30}, {"lora", "/a.safetensors"}});
  const auto label = [](const std::string& field) { return "line 3: " + field; };
  read_job({{"preset", "qwen-image-lightning-8"}}, label, job);
  EXPECT_EQ(job.request.steps, 8);
  EXPECT_EQ(job.request.flow_shift, 3);
  EXPECT_EQ(job.request.solver, "euler");
  EXPECT_FALSE(job.request.loras) << "they are those of the preset";
  for (const auto& [fields, message] :
       {std::pair{json{{"preset", "distill-4"}, {"steps", 8}},
                  "line 3: steps is 8, but line 3: preset is distill-4; legal with it: 4"},
        {json{{"preset", "distill-4"}, {"sigmas", {1, 0.5}}}, "legal with it: none"},
        {json{{"preset", "distil-4"}}, "line 3: preset is 'distil-4', legal: distill-4, wan2.1"},
        {json{{"preset", "list"}}, "line 3: preset is 'list', legal: "},
        {json{{"preset", "none"}}, "line 3: preset is 'none', legal: a preset, as"},
        {json{{"preset", 4}}, "line 3: preset is 4, legal: a text"}})
    EXPECT_TRUE(
        contains(error_of([&] { read_job(fields, label, job); }, ErrorKind::kUsage), message));
}

TEST(JobSpec, PromptsOfAScheduleAscend) {
  const auto schedule = [](const json& entries) { return json{{"prompt_schedule", entries}}; };
  const JobSpec job =
      read(schedule({{{"at", "12s"}, {"prompt", "a"}}, {{"at", 15}, {"prompt", "b"}}}));
  ASSERT_EQ(job.request.schedule.size(), 2u);
  EXPECT_EQ(job.request.schedule[0].seconds, 12);
  EXPECT_EQ(job.request.schedule[1].prompt, "b");
  const std::pair<json, const char*> faults[] = {
      {{{{"at", "12s"}, {"prompt", "a"}}, {{"at", 12}, {"prompt", "b"}}},
       "entry 2: at is 12, legal: seconds above 12"},
      {{{{"at", "soon"}, {"prompt", "a"}}}, "entry 1: at is \"soon\", legal: seconds above 0"},
      {{{{"at", 1}}}, "entry 1 has no prompt"},
      {{{{"at", 1}, {"promt", "a"}}},
       "has the field promt, legal: at, prompt; did you mean prompt?"},
      {{{{"at", 1}, {"prompt", 2}}}, "prompt is 2, legal: a text"},
      {"now", "is 'now', legal: a list of"},
      {"[]", "is '[]', legal: a list of"},
      {{1}, "entry 1 is 1"},
  };
  for (const auto& [entries, message] : faults)
    EXPECT_TRUE(contains(spec_refusal(schedule(entries)), message));
}

TEST(JobSpec, TextsNumbersAndDashesAreTheSame) {
  const JobSpec job = read({{"num-frames", "5"},
                            {"fps", "12.5"},
                            {"seed", "7"},
                            {"size", "64*32"},
                            {"round_frames", "on"},
                            {"sigmas", "0.9,0.25"},
                            {"steps", 2.0}});
  const JobSpec same = read({{"num_frames", 5},
                             {"fps", 12.5},
                             {"seed", 7},
                             {"width", 64},
                             {"height", 32},
                             {"round_frames", true},
                             {"sigmas", {0.9, 0.25}}});
  EXPECT_EQ(to_json(job).dump(), to_json(same).dump());
  EXPECT_FALSE(read({{"seed", -1}}).seeded);
  EXPECT_EQ(read({{"fps", "24000/1001"}}).request.fps, 24000 / 1001.0);
}

// Paths have any bytes, and their record is text that gives them back.
TEST(JobSpec, PathsOfAnyBytesAreTextInRecords) {
  JobSpec job;
  job.output = "gr\xfcn/a.mp4";
  job.request.files.vae = "/\xe7/\\xfc.safetensors";
  job.request.image = {.path = "/p\x80.png"};
  job.request.audio = {.path = "/\xff.wav"};
  job.request.references = {{.path = "/r\xfc,.png"}};
  job.request.loras = {{.file = "/l\xfc,:.safetensors", .scale = 0.5}};
  const json record = to_json(job);
  EXPECT_EQ(record.at("output"), "gr\\xfcn/a.mp4");
  EXPECT_EQ(record.at("vae"), "/\\xe7/\\x5cxfc.safetensors");
  EXPECT_EQ(record.at("lora"), "/l\\xfc\\x2c\\x3a.safetensors:0.5");
  const JobSpec again = read(json::parse(record.dump()));
  EXPECT_EQ(again.output, job.output);
  EXPECT_EQ(again.request.files.vae, job.request.files.vae);
  EXPECT_EQ(again.request.image.path, job.request.image.path);
  EXPECT_EQ(again.request.audio.path, job.request.audio.path);
  EXPECT_EQ(again.request.loras, job.request.loras);
  EXPECT_EQ(again.request.references[0].path, job.request.references[0].path);
  for (const char* out : {"\\x2e\\x2e/a", "\\x2fetc/a", "a/\\x2e./b"})
    EXPECT_TRUE(contains(spec_refusal({{"output", out}}), "a path inside")) << out;
  EXPECT_EQ(
      read({{"id", "球球球球球球球球球球球球球球球球球球球球球球球球球球球球球球"}}).id.size(),
      90u);
}

TEST(JobSpec, ALineReplacesWhatItContradicts) {
  const JobSpec flags =
      read({{"num_frames", 81}, {"steps", 20}, {"flow_shift", 3}, {"size", "64x32"}});
  const json line = to_json(read({{"seconds", 1}, {"sigmas", {0.5}}, {"height", 16}}, flags));
  EXPECT_EQ(line, (json{{"schema", kJobSchema},
                        {"prompt", ""},
                        {"rng", "portable"},
                        {"seconds", 1.0},
                        {"sigmas", {0.5}},
                        {"steps", 1},
                        {"width", 64},
                        {"height", 16}}));
  EXPECT_FALSE(to_json(read({{"steps", 3}}, read(line))).contains("sigmas"));
  EXPECT_FALSE(to_json(read({{"num_frames", 5}}, read(line))).contains("seconds"));
}

TEST(JobSpec, WhatIsIllegalIsRefused) {
  const std::pair<json, std::string> cases[] = {
      {{{"stepz", 3}}, "line 3: stepz is no field of a job; did you mean steps?"},
      {{{"xyz", 3}}, "line 3: xyz is no field of a job; legal: id, output, prompt, "},
      {{{"schema", "weft.job/v2"}}, "schema is \"weft.job/v2\", legal: \"weft.job/v1\""},
      {{{"width", 0}}, "line 3: width is 0, legal: 1 ... 16384; nearest: 1"},
      {{{"width", 16.5}}, "line 3: width is '16.5', legal: a whole number, 1 ... 16384"},
      {{{"steps", "2 --output=/tmp/x"}}, "steps is '2 --output=/tmp/x', legal: a whole number"},
      {{{"guidance_scale", 101}}, "guidance_scale is 101, legal: 0 ... 100; nearest: 100"},
      {{{"solver", "eular"}}, "solver is 'eular', legal: unipc-diffusers|"},
      {{{"solver", "eular"}}, "did you mean euler?"},
      {{{"rng", "mt"}}, "rng is 'mt', legal: portable|torch-cpu"},
      {{{"image_sha256", "ABC"}}, "image_sha256 is 'ABC', legal: 64 lower-case hexadecimal digits"},
      {{{"reference", {1}}}, "reference is [1], legal: a text, or a list of texts"},
      {{{"reference", ""}}, "reference is '[\"\"]', legal: paths of pictures"},
      {{{"reference", "a.png"}, {"reference_sha256", {std::string(64, 'a'), "b"}}},
       "legal: 1 hashes, one for each reference"},
      {{{"reference", "a.png"}, {"reference_sha256", "ABC"}}, "legal: 64 lower-case hex"},
      {{{"image_fit", "tile"}}, "image_fit is 'tile', legal: cover|contain|stretch"},
      {{{"seed", -2}}, "seed is '-2', legal: 0 ... 18446744073709551615"},
      {{{"size", "832"}}, "size is '832', legal: WxH"},
      {{{"prompt", {"a", "b"}}}, "prompt is [\"a\",\"b\"], legal: a text"},
      {{{"sigmas", {0.5, 0.7}}}, "sigmas is '0.5,0.7', legal: falling numbers"},
      {{{"id", ""}}, "id is '', legal: 1 ... 64 characters"},
      {{{"id", std::string(65, 'a')}}, "legal: 1 ... 64 characters"},
      {{{"output", "../a.mp4"}}, "output is '../a.mp4', legal: a path inside the folder"},
      {{{"output", "/tmp/a.mp4"}}, "legal: a path inside the folder"},
      {{{"size", "64x32"}, {"width", 32}}, "line 3: size 64x32 contradicts line 3: width"},
      {{{"seconds", 1}, {"num_frames", 5}}, "exclude each other"},
      {{{"sigmas", {0.5}}, {"steps", 2}}, "steps is 2, but line 3: sigmas has 1 values"},
      {{{"sigmas", {0.5}}, {"flow_shift", 2}}, "flow_shift is given beside line 3: sigmas"},
  };
  for (const auto& [object, message] : cases)
    EXPECT_TRUE(contains(spec_refusal(object), message)) << object << ": " << spec_refusal(object);
}

// A picture is the same wherever its file lies, and another one makes another job.
TEST(JobSpec, APictureIsKnownByItsPixels) {
  const auto record = [](const std::string& path, char digit) {
    const JobSpec job =
        read({{"image", path}, {"image_sha256", std::string(64, digit)}, {"prompt", "x"}});
    return json{{"engine", json::object()}, {"request", to_json(job)}}.dump();
  };
  EXPECT_EQ(difference(record("/a.png", '1'), record("/b.png", '1')), "");
  EXPECT_EQ(job_hash(record("/a.png", '1')), job_hash(record("/b.png", '1')));
  EXPECT_TRUE(
      contains(difference(record("/a.png", '1'), record("/a.png", '2')), "image_sha256 is '1"));
  // Another file is not yet known.
  const JobSpec before = read({{"image", "/a.png"}, {"image_sha256", std::string(64, '1')}});
  EXPECT_EQ(read({{"image", "/b.png"}}, before).request.image.sha256, "");
}

TEST(JobSpec, ReferencesAreKnownByTheirPixels) {
  const auto record = [](const std::string& path, char first, char second) {
    const JobSpec job =
        read({{"reference", {path, "/b.png"}},
              {"reference_sha256", {std::string(64, first), std::string(64, second)}}});
    return json{{"engine", json::object()}, {"request", to_json(job)}}.dump();
  };
  EXPECT_EQ(difference(record("/a.png", '1', '2'), record("/c.png", '1', '2')), "");
  EXPECT_TRUE(contains(difference(record("/a.png", '1', '2'), record("/a.png", '2', '1')),
                       "reference_sha"));
  const JobSpec before =
      read({{"reference", "/a.png"}, {"reference_sha256", std::string(64, '1')}});
  EXPECT_EQ(before.request.references[0].sha256, std::string(64, '1'));
  EXPECT_EQ(read({{"reference", "/b.png"}}, before).request.references[0].sha256, "");
  EXPECT_TRUE(read({{"reference", json::array()}}, before).request.references.empty());
  json job{{"image", "/a.png"}, {"reference", {"/b.png", "/c.png"}}, {"prompt", "/d.png"}};
  change_file_paths(job, [](const std::string& path) { return "/x" + path; });
  EXPECT_EQ(
      job,
      (json{{"image", "/x/a.png"}, {"reference", {"/x/b.png", "/x/c.png"}}, {"prompt", "/d.png"}}));
}

TEST(JobSpec, FramesComeFromSecondsAndAreChecked) {
  DefaultSettings defaults;
  defaults.fps = 8;
  const ModelLimits limits;
  const auto frames = [&](const json& object) {
    return request_of(read(object), defaults, limits, label).frames;
  };
  EXPECT_EQ(frames({{"seconds", 2}}), 17);
  EXPECT_EQ(frames({{"seconds", 2}, {"fps", 4}}), 9);
  EXPECT_EQ(frames({{"num_frames", 10}, {"round_frames", true}}), 9);
  expect_error(ErrorKind::kUsage, "line 3: num_frames is 10, legal: 4n+1", [&] {
    frames({{"num_frames", 10}});
  });
}

// The machine, the number of threads and the layout may differ; the frames are the same job's.
TEST(JobSpec, TheHashLeavesTheMachineOut) {
  Generator one(kModel, {.threads = 1}), two(kModel, {.threads = 2});
  const Request request = one.resolve(test::job());
  EXPECT_NE(one.job_record(request), two.job_record(request));
  EXPECT_EQ(job_hash(one.job_record(request)), job_hash(two.job_record(request)));
  EXPECT_EQ(difference(one.job_record(request), two.job_record(request)), "");
}

// A prompt is tokenised once, whoever asks, and generators share what is open.
TEST(JobSpec, GeneratorsShareAnOpenModel) {
  const auto model = std::make_shared<const OpenModel>(kModel);
  const auto first = model->tokens("a red ball");
  const Generator a(model, {.threads = 1}), b(model, {.threads = 1});
  Request request = test::job();
  request.prompt = "a red ball";
  a.plan(a.resolve(request));
  b.plan(b.resolve(request));
  EXPECT_EQ(model->tokens("a red ball"), first);  // the same object
  EXPECT_NE(model->tokens("a blue ball"), first);
}

}  // namespace
}  // namespace weft::test
