// The binary as a user meets it: exit codes, errors of one line, nothing half-written.
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/apps/cli_testing.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using test::Cli, test::json_lines, test::kJob, test::kModel, test::lines, test::Outcome, test::run;

TEST_F(Cli, HelpGoesToStandardOutput) {
  for (const char* arguments :
       {"--help", "help", "generate --help", "verify -h", "inspect --help-all", "help bench",
        "help generate --help-all", "--help generate", "--version", "version"}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 0) << arguments;
    EXPECT_FALSE(outcome.out.empty()) << arguments;
    EXPECT_TRUE(outcome.err.empty()) << outcome.err;
  }
}

TEST_F(Cli, UsageErrorsAreOneLineAndExit2) {
  const std::string job = "generate --model " + kModel + kJob + "-p x -o " + path("a.mp4");
  for (const std::string& arguments : std::vector<std::string>{
           "generat", "generate", "generate --prompt x", job + " --stepz 3", job + " --steps 0",
           job + " --solver ddim", job + " --layout ring=2 --ranks 3", job + " --ranks 0",
           job + " --device tpu", job + " --device cuda", job + " --sigmas 0.5,0.7",
           job + " --cfg-scale abc", "generate --model " + kModel + " -p x -o " + path("a.avi"),
           "generate --model " + kModel + kJob + "-p x -o " + path("a.png"),
           "generate --model " + kModel + " --width 33 --height 16 -p x -o " + path("a.mp4"),
           "generate --model " + kModel + kJob + "--seconds 1 -p x -o " + path("a.mp4"),
           "generate --model " + kModel + kJob + "-o " + path("a.mp4") + " --prompt-file " +
               path("no"),
           "verify", "inspect"}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments << "\n" << outcome.err;
    if (arguments.find(" -p x") != std::string::npos) {
      EXPECT_EQ(lines(outcome.err), 1u) << outcome.err;
    }
    EXPECT_TRUE(outcome.out.empty()) << outcome.out;
  }
  EXPECT_TRUE(files().empty());
}

TEST_F(Cli, IllegalExtentsNameTheFlagAndTheNearestTwo) {
  const std::string base = "generate --model " + kModel + " -p x -o " + path("a.mp4");
  for (const auto& [flags, text] :
       {std::pair{"-W 40 --height 16",
                  "-W is 40, legal: multiples of 16, 16 ... 16384; nearest: 32 "
                  "and 48"},
        {"--size 32x40",
         "--size is '32x40': its height is 40, legal: multiples of 16, 16 ... 16384; "
         "nearest: 32 and 48"},
        {"--size 32x16 --video-frames 10",
         "--video-frames is 10, legal: 4n+1, 1 ... 1048576; nearest: 9 and 13"},
        {"--size 32x16 --seconds 36000 --fps 1000",
         "--seconds is 36000, which is 36000001 frames, legal: 4n+1, 1 ... 1048576; nearest: "
         "1048573"}}) {
    const Outcome outcome = run(base + " -q " + flags);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_EQ(outcome.err, "weft: " + std::string(text) + "\n");
  }
  const Outcome expert = run(base + kJob + "--guidance-scale-2 3");
  EXPECT_EQ(expert.code, 2);
  EXPECT_NE(expert.err.find("--guidance-scale-2 is 3, but this model has one expert"),
            std::string::npos)
      << expert.err;
  const Outcome memory = run("inspect models/pocket --memory 17x130x128");
  EXPECT_EQ(memory.code, 2);
  EXPECT_NE(memory.err.find("--memory is '17x130x128': its height is 130, legal: multiples of 16"),
            std::string::npos)
      << memory.err;
}

TEST_F(Cli, GenerateWritesFileSidecarAndOneResultLine) {
  const Outcome outcome =
      run("generate --model " + kModel + kJob + "-p 'a red ball' -o " + path("a.mp4"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(lines(outcome.out), 1u);
  EXPECT_EQ(files(), (std::vector<std::string>{"a.mp4", "a.mp4.json"}));
  const nlohmann::json sidecar = nlohmann::json::parse(std::ifstream(path("a.mp4.json")));
  EXPECT_EQ(sidecar.at("request").at("seed"), 5);
  EXPECT_EQ(sidecar.at("request").at("prompt"), "a red ball");
  const std::string hash = sidecar.at("framehash");
  EXPECT_EQ(hash.size(), 64u);
  EXPECT_NE(outcome.out.find(path("a.mp4") + " " + hash), std::string::npos) << outcome.out;

  const Outcome inspected = run("inspect --json " + path("a.mp4"));
  ASSERT_EQ(inspected.code, 0) << inspected.err;
  const nlohmann::json info = nlohmann::json::parse(inspected.out);
  EXPECT_EQ(info.at("frames"), 9);
  EXPECT_EQ(info.at("width"), 32);
  EXPECT_EQ(info.at("metadata").at("weft").at("request").at("seed"), 5);
}

TEST_F(Cli, SameSeedSameHashAcrossRunsAndThreads) {
  auto hash = [&](const std::string& name, const std::string& more) {
    const Outcome outcome = run("generate --model " + kModel +
                                " --size 32x16 --num-frames 9 --steps 2 --seed 5 --progress none "
                                "-p 'a red ball' --json -o " +
                                path(name) + more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out).at("framehash").get<std::string>();
  };
  EXPECT_EQ(hash("a.mp4", " --threads 1"), hash("b.gif", " --threads 1"));
  EXPECT_EQ(hash("c.mp4", " --deterministic --threads 1"),
            hash("d.mp4", " --deterministic --threads 2"));
}

TEST_F(Cli, ExistingOutputIsKept) {
  std::ofstream(path("a.mp4")) << "mine";
  const std::string job = "generate --model " + kModel + kJob + "-p x -o " + path("a.mp4");
  EXPECT_EQ(run(job).code, 7);
  std::string kept;
  std::ifstream(path("a.mp4")) >> kept;
  EXPECT_EQ(kept, "mine");
  EXPECT_EQ(files(), (std::vector<std::string>{"a.mp4"}));
  EXPECT_EQ(run(job + " --overwrite").code, 0);
  EXPECT_GT(fs::file_size(path("a.mp4")), 100u);
}

TEST_F(Cli, UnwritableOutputExits7) {
  std::ofstream(path("file")) << "x";
  const Outcome outcome =
      run("generate --model " + kModel + kJob + "-q -p x -o " + path("file/inside.mp4"));
  EXPECT_EQ(outcome.code, 7) << outcome.err;
  EXPECT_EQ(lines(outcome.err), 1u) << outcome.err;
}

TEST_F(Cli, FullDiskExits7AndLeavesNothing) {
  // A file-size limit stands in for a full disk: writes fail midway with an error.
  const Outcome outcome = run("generate --model " + kModel + kJob + "-q -p x -o " + path("a.gif"));
  ASSERT_EQ(outcome.code, 0);
  const std::string limited = "sh -c 'ulimit -f 1; exec " + std::string(WEFT_BINARY) +
                              " generate --model " + kModel + kJob + " -q -p x -o " + path("b/") +
                              "' 2>" + path("err");
  const int status = std::system(limited.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 7);
  fs::remove(path("err"));
  EXPECT_EQ(files(), (std::vector<std::string>{"a.gif", "a.gif.json"}));
}

TEST_F(Cli, MemoryLimitRefusesWithNumbers) {
  const Outcome outcome =
      run("generate --model " + kModel + kJob + "--memory-limit 10K -p x -o " + path("a.mp4"));
  EXPECT_EQ(outcome.code, 4) << outcome.err;
  EXPECT_NE(outcome.err.find("Try"), std::string::npos) << outcome.err;
  EXPECT_TRUE(files().empty());
}

TEST_F(Cli, BadModelsExit3) {
  EXPECT_EQ(run("generate --model " + path("none") + kJob + "-p x -o " + path("a.mp4")).code, 3);
  fs::copy(kModel, path("model"), fs::copy_options::recursive);
  const std::string weights = path("model/transformer/diffusion_pytorch_model.safetensors");
  fs::resize_file(weights, fs::file_size(weights) / 2);
  const Outcome outcome =
      run("generate --model " + path("model") + kJob + "-q -p x -o " + path("a.mp4"));
  EXPECT_EQ(outcome.code, 3) << outcome.err;
  EXPECT_FALSE(fs::exists(path("a.mp4")));
  EXPECT_EQ(lines(outcome.err), 1u) << outcome.err;
}

TEST_F(Cli, SeveralPromptsMakeNumberedFiles) {
  std::ofstream(path("prompts.txt")) << "# two prompts\na red ball\n\n  \nblue star\n";
  const Outcome outcome = run("generate --model " + kModel + kJob + "--prompt-file " +
                              path("prompts.txt") + " -o " + path("out/"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(lines(outcome.out), 2u);
  EXPECT_TRUE(fs::exists(path("out/00000.mp4")));
  EXPECT_TRUE(fs::exists(path("out/00001.mp4")));
}

TEST_F(Cli, ProfileAndTraceTellTheTimeAndChangeNoBit) {
  const std::string job = "generate --model " + kModel + kJob + "-p x -o ";
  const std::string traces = " --profile --trace " + path("t.json.gz");
  const Outcome plain = run(job + path("a.mp4") + " --json");
  const Outcome seen = run(job + path("b.mp4") + " --json" + traces);
  ASSERT_EQ(seen.code, 0) << seen.err;
  const nlohmann::json result = nlohmann::json::parse(seen.out);
  EXPECT_EQ(result["framehash"], nlohmann::json::parse(plain.out)["framehash"]);
  const nlohmann::json sidecar = nlohmann::json::parse(std::ifstream(path("b.mp4.json")));
  EXPECT_EQ(sidecar["profile"], result["profile"]);
  const std::vector<std::string> order{"load",   "encode_text",  "denoise",
                                       "decode", "encode_video", "write"};
  ASSERT_EQ(result["profile"]["stages"].size(), order.size());
  double share = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const nlohmann::json& stage = result["profile"]["stages"][i];
    EXPECT_EQ(stage["stage"], order[i]);
    EXPECT_GE(stage["between_ops"].get<double>(), 0);
    share += stage["share"].get<double>();
  }
  EXPECT_NEAR(share, 1, 1e-9);
  EXPECT_GT(result["profile"]["stages"][2]["families"]["linear"]["gflops"], 0);
  EXPECT_GT(result["profile"]["stages"][2]["families"]["norm"]["bytes"], 0);
  EXPECT_TRUE(fs::exists(path("t.json.gz")));

  const Outcome again = run(job + path("c.mp4") + traces);  // never replaced unasked
  EXPECT_EQ(again.code, 7) << again.err;
  EXPECT_FALSE(fs::exists(path("c.mp4")));
  const Outcome ranks = run(job + path("c.mp4") + " --profile --trace " + path("r.json") +
                            " --ranks 2 --layout ring=2");
  EXPECT_EQ(ranks.code, 0) << ranks.err;
  for (const char* text : {"op family", "communication", "between ops", "rank, last result"})
    EXPECT_NE(ranks.err.find(text), std::string::npos) << text;
  const nlohmann::json trace = nlohmann::json::parse(std::ifstream(path("r.json")));
  std::map<int, int> pids;
  for (const nlohmann::json& event : trace["traceEvents"]) ++pids[event["pid"].get<int>()];
  EXPECT_EQ(pids.size(), 2u);
  EXPECT_EQ(run(job + path("d.mp4") + " --trace " + path("t.txt")).code, 2);
}

// Names inside a file may hold a terminal's control sequences; none may reach a terminal.
TEST_F(Cli, NamesFromFilesSteerNoTerminal) {
  std::string header = R"({"__metadata__":{"note":"a\u001b[2Jb"},)"
                       R"("t\u001b[1m":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t size = header.size();
  const std::string file = path("t.safetensors"), cut = path("c.safetensors");
  std::ofstream(file).write(reinterpret_cast<const char*>(&size), 8) << header << "abcd";
  std::ofstream(cut).write(reinterpret_cast<const char*>(&size), 8) << header << "ab";
  for (const std::string& command :
       {"inspect --verbose-tensors " + file, "inspect " + cut, "compare " + file + " " + file}) {
    const Outcome outcome = run(command);
    EXPECT_EQ((outcome.out + outcome.err).find('\x1b'), std::string::npos) << command;
    EXPECT_FALSE((outcome.out + outcome.err).empty());
  }
}

TEST_F(Cli, EverySolverRuns) {
  for (const char* solver : {"unipc", "unipc-wan", "dpm++", "dpm++-wan", "euler", "distill-4"}) {
    const Outcome outcome =
        run("generate -q --overwrite --model " + kModel +
            " --width 32 --height 16 --num-frames 1 --steps 4 --seed 5 --threads 1 -p x --solver " +
            solver + " -o " + path("a.png"));
    EXPECT_EQ(outcome.code, 0) << solver << ": " << outcome.err;
  }
}

TEST_F(Cli, DryRunPrintsThePlanAndWritesNothing) {
  const Outcome outcome =
      run("generate --dry-run --model " + kModel + kJob + "-p x -o " + path("a.mp4"));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("memory"), std::string::npos);
  EXPECT_TRUE(files().empty());
}

TEST_F(Cli, SinglePicturesHoldTheirParameters) {
  const Outcome image =
      run("generate --model " + kModel +
          " --width 32 --height 16 --num-frames 1 --steps 2 --seed 5 -q -p x -o " + path("a.png"));
  EXPECT_EQ(image.code, 0) << image.err;
  const nlohmann::json info = nlohmann::json::parse(run("inspect --json " + path("a.png")).out);
  EXPECT_EQ(info.at("width"), 32);
  EXPECT_NE(info.at("metadata").at("parameters").get<std::string>().find("Seed: 5"),
            std::string::npos);
}

TEST_F(Cli, VerifyTellsFailFromMalformed) {
  EXPECT_EQ(run("verify tests/golden/scheduler_euler_n4_s3_0").code, 0);
  fs::copy("tests/golden/scheduler_euler_n4_s3_0", path("case"), fs::copy_options::recursive);
  nlohmann::json spec = nlohmann::json::parse(std::ifstream(path("case/case.json")));
  spec["steps"] = 5;  // another job than the one expected: shapes differ
  std::ofstream(path("case/case.json")) << spec.dump();
  EXPECT_EQ(run("verify " + path("case")).code, 1);
  std::ofstream(path("case/case.json")) << "{";
  EXPECT_EQ(run("verify " + path("case")).code, 3);
  EXPECT_EQ(run("verify " + path("nowhere")).code, 3);
  std::ofstream(path("case/case.json")) << R"({"stage": "llm", "tolerance": 1e-4, "greedy": 1})";
  EXPECT_EQ(run("verify --json " + path("case")).code, 3);  // has no input_ids
}

TEST_F(Cli, InspectCountsFromConfigAlone) {
  const std::string config = path("config.json");
  std::ofstream(config) << R"({"_class_name": "WanTransformer3DModel", "num_attention_heads": 12,
    "attention_head_dim": 128, "num_layers": 30, "ffn_dim": 8960, "in_channels": 16,
    "out_channels": 16, "text_dim": 4096, "freq_dim": 256, "cross_attn_norm": true,
    "qk_norm": "rms_norm_across_heads", "eps": 1e-6, "patch_size": [1, 2, 2],
    "rope_max_seq_len": 1024, "image_dim": null, "added_kv_proj_dim": null})";
  const nlohmann::json info = nlohmann::json::parse(run("inspect --json " + config).out);
  EXPECT_EQ(info.at("parameters"), 1418996800);
  EXPECT_EQ(info.at("tensors"), 825);
}

// The layout in which Wan 2.2 speech to video is published: parts lie beside the transformer.
TEST_F(Cli, InspectTellsThePartsOfAnOriginalFolder) {
  namespace fs = std::filesystem;
  const std::string folder = path("S2V"), encoder = folder + "/wav2vec2-large-xlsr-53-english";
  fs::create_directories(folder + "/google");
  fs::copy("tests/golden/s2v_motion/model/transformer", folder);
  fs::copy("tests/golden/wav2vec2_tiny/model/audio_encoder", encoder);
  std::ofstream(folder + "/Wan2.1_VAE.pth") << "x";
  const Outcome whole = run("inspect --json " + folder);
  ASSERT_EQ(whole.code, 0) << whole.err;
  const nlohmann::json info = nlohmann::json::parse(whole.out);
  EXPECT_EQ(info.at("not_read"), nlohmann::json({"Wan2.1_VAE.pth"}));
  EXPECT_EQ(info.at("components").size(), 2u);
  EXPECT_EQ(info["components"]["transformer"]["class"], "WanModel_S2V");
  const nlohmann::json& heard = info["components"]["wav2vec2-large-xlsr-53-english"];
  EXPECT_EQ(heard.at("class"), "Wav2Vec2Model");
  EXPECT_EQ(heard.at("tensors"), 85);

  const Outcome part = run("inspect --json " + encoder);
  ASSERT_EQ(part.code, 0) << part.err;
  const nlohmann::json weights = nlohmann::json::parse(part.out);
  EXPECT_EQ(weights.at("class"), "Wav2Vec2Model");
  EXPECT_EQ(weights.at("tensors"), 88);  // with those of another head
  EXPECT_EQ(weights.at("format"), "safetensors");

  std::ofstream(encoder + "/config.json") << R"({"model_type": "wav2vec2", "hidden_size": 5})";
  const Outcome broken = run("inspect " + folder);
  EXPECT_EQ(broken.code, 3);
  EXPECT_NE(broken.err.find("conv_dim"), std::string::npos) << broken.err;
}

TEST(Plan, TellsTimeMemoryAndBytesOfALayout) {
  const std::string svg = testing::TempDir() + "/weft_plan.svg";
  const Outcome outcome =
      run("plan --model " + kModel +
          " --width 32 --height 16 --num-frames 9 --steps 2 --ranks 2 --layout ulysses=2 --json "
          "--device-gflops 1 --device-gbs 1 --link-gbit 1 --link-ms 1 --svg " +
          svg);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto object = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(object["layout"], "ulysses=2");
  EXPECT_GT(object["seconds"], object["stages"]["denoise"]);
  ASSERT_EQ(object["per_rank"].size(), 2u);
  EXPECT_GT(object["per_rank"][1]["sent"]["heads-in"]["bytes"], 0);
  EXPECT_GT(object["per_rank"][0]["high_water_bytes"], object["per_rank"][0]["weights_bytes"]);
  std::ifstream drawn(svg);
  EXPECT_NE(std::string(std::istreambuf_iterator<char>(drawn), {}).find("</svg>"),
            std::string::npos);
  fs::remove(svg);
}

TEST(Plan, PrintsAndProvesTheSchedule) {
  const std::string job = "plan --model " + kModel +
                          " --width 32 --height 16 --num-frames 9 --steps 3 --ranks 2 "
                          "--layout layers=2 --device-gflops 1 --device-gbs 1 ";
  const Outcome turns = run(job + "--check");
  ASSERT_EQ(turns.code, 0) << turns.err;
  EXPECT_NE(turns.out.find("checked layers=2: 2 ranks, "), std::string::npos) << turns.out;
  EXPECT_NE(turns.out.find("no deadlock under rendezvous sends"), std::string::npos);
  const Outcome steps = run(job + "--plan-rank 1");
  EXPECT_NE(steps.out.find("schedule of rank 1 of 2, "), std::string::npos) << steps.out;
  EXPECT_NE(steps.out.find("post step 0 "), std::string::npos);
  EXPECT_EQ(run(job + "--plan-rank 2").code, 2);
  const auto object = nlohmann::json::parse(run(job + "--check --json").out);
  EXPECT_NE(object["checked"].get<std::string>().find("bytes follow the formula"),
            std::string::npos);
  EXPECT_EQ(object["turns"].front()["loads"], 2);
  EXPECT_EQ(object["turns"].back()["decodes"], 2);
}

TEST(Plan, ComparesEveryLayout) {
  const Outcome outcome = run("plan --model " + kModel +
                              " --width 32 --height 16 --num-frames 9 --steps 2 --ranks 2 "
                              "--layout all --json --device-gflops 1 --device-gbs 1");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto layouts = json_lines(outcome.out);
  double before = 0;
  for (const auto& layout : layouts) {
    EXPECT_GE(layout.at("seconds"), before);  // the fastest first
    before = layout.at("seconds");
  }
  EXPECT_GE(layouts.size(), 5u);
}

TEST(Layouts, HaveShortFlags) {
  const std::string job = "generate --model " + kModel + kJob + "--prompt x --dry-run ";
  for (const char* more : {"--ranks 4 --ulysses 2 --cfg-degree 2", "--ulysses 2 --cfg 2",
                           "--layout ulysses=2,cfg=2"}) {
    const Outcome outcome = run(job + more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_NE(outcome.out.find("cfg=2,ulysses=2 (4 threads of one process)"), std::string::npos)
        << outcome.out;
  }
  const Outcome twice = run(job + "--ranks 2 --ulysses 2 --layout ring=2");
  EXPECT_EQ(twice.code, 2);
  EXPECT_NE(twice.err.find("give the layout once"), std::string::npos) << twice.err;
  const Outcome mismatch = run(job + "--ranks 3 --tp 2");
  EXPECT_EQ(mismatch.code, 2);
  EXPECT_NE(mismatch.err.find("legal for 3 ranks"), std::string::npos) << mismatch.err;
}

// Loading holds the bytes of the plan and little more. The ratio to reading depends on the machine.
TEST(Bench, LoadsBesideReading) {
  const Outcome outcome = run("bench load --model models/pocket --repeat 2 --json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto object = nlohmann::json::parse(outcome.out);
  EXPECT_GT(object["ratio"], 0);
  EXPECT_GT(object["source_bytes"], 1 << 20);
  EXPECT_GT(object["weights_bytes"], 1 << 20);
  EXPECT_GT(object["peak_anonymous_bytes"], 0.9 * object["weights_bytes"].get<double>());
}

TEST(Plan, RefusesHalfADevice) {
  const Outcome outcome = run("plan --model " + kModel + " --device-gflops 5");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.err.find("--device-gbs"), std::string::npos);
}

const std::string kNamedPlan = "plan --model " + kModel + " --steps 2 --num-frames 9 -p x ";

// A name stands for memory, rates and links; the flags for these win, one by one.
TEST(Plan, DescribesADeviceByItsName) {
  const auto plan = [](const std::string& more) {
    return test::json_lines_of(kNamedPlan + more + " --json").front();
  };
  const nlohmann::json small = plan("--device-name 'RTX 4090'"), large = plan("--device-name b200");
  EXPECT_EQ(small["device"], "NVIDIA GeForce RTX 4090 (by its name)");
  EXPECT_LT(small["available_bytes"], uint64_t{24} << 30);
  EXPECT_GT(large["available_bytes"], uint64_t{170} << 30);
  EXPECT_EQ(plan("--device-name nvidia-rtx4090 --device cuda")["seconds"], small["seconds"]);
  EXPECT_GT(small["seconds"], large["seconds"]);
  EXPECT_EQ(plan("--device-name h200")["seconds"], plan("--device cuda")["seconds"]);
  // A slower product or memory takes longer; without the name, one flag alone is refused.
  EXPECT_GT(plan("--device-name b200 --device-gflops 1")["seconds"], large["seconds"]);
  EXPECT_GT(plan("--device-name b200 --device-gbs 1")["seconds"], large["seconds"]);
  const std::string both = "--device-gflops 7 --device-gbs 9 ";
  EXPECT_GT(plan(both + "--device-name b200")["seconds"], 10 * large["seconds"].get<double>());
}

TEST(Plan, ANamedDeviceHasItsLinks) {
  const auto link = [](const std::string& more) {
    const std::string text = run(kNamedPlan + "--ranks 2 --layout cfg=2 --device-name " + more).out;
    const size_t at = text.find("\nlink    ") + 9;
    return text.substr(at, text.find('\n', at) - at);
  };
  EXPECT_EQ(link("'H100 SXM'"), "3600 Gbit/s, 0.01 ms");
  EXPECT_EQ(link("L40S"), "176 Gbit/s, 0.01 ms");
  EXPECT_EQ(link("L40S --link-gbit 8"), "8 Gbit/s, 0.01 ms");
  EXPECT_EQ(link("L40S --link-ms 3"), "176 Gbit/s, 3 ms");
  const auto upload_gbs = [](const std::string& more) -> double {
    const std::string plan = "plan --model models/pocket --num-frames 1 --steps 1 -p x --json ";
    return test::json_lines_of(plan + "--resident-layers 2 --device-name A100-80GB " + more)
        .front()["streaming"]["predicted_gbs"];
  };
  EXPECT_NEAR(upload_gbs(""), 25, 1e-6);
  EXPECT_NEAR(upload_gbs("--device-host-gbs 9"), 9, 1e-6);
}

TEST(Plan, RefusesANameThatItDoesNotKnow) {
  for (const char* name : {"'RTX 4091'", "H100", "cuda"}) {
    const Outcome outcome = run(kNamedPlan + "--device-name " + name);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.err.find("legal: H100 SXM, H100 PCIe, H200, "), std::string::npos)
        << outcome.err;
  }
  const Outcome cpu = run(kNamedPlan + "--device cpu --device-name L4");
  EXPECT_EQ(cpu.code, 2);
  EXPECT_NE(cpu.err.find("--device is 'cpu'"), std::string::npos) << cpu.err;
  const Outcome fp8 = run(kNamedPlan + "--device-name L4 --attention fp8");
  EXPECT_EQ(fp8.code, 2);
  EXPECT_NE(fp8.err.find("NVIDIA L4 is no device of compute capability 9.0"), std::string::npos)
      << fp8.err;
}

}  // namespace
}  // namespace weft
