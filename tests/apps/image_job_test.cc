// Pictures are facts of a job: records, replay, resumption, batches and servers state them by their
// pixels.
#include "io/media/image.h"
#include "tests/apps/cli_testing.h"
#include "tests/apps/resume_testing.h"

namespace weft::test {
namespace {

using nlohmann::json;

const std::string kPictureModel = "tests/golden/pipeline_i2v_a14b/model";
const std::string kEditModel = "tests/golden/pipeline_flux2_klein_edit_two_large/model";
const std::string kFirstFrame = "tests/golden/pipeline_ti2v_5b/model";

void write_picture(const std::string& path, int width, int height, int seed) {
  Frame frame(width, height);
  for (size_t i = 0; i < frame.rgb.size(); ++i)
    frame.rgb[i] = static_cast<uint8_t>(i * (7 + seed) % 251);
  write_png(path, frame, {}, Overwrite::kReplace);
}

class ImageJob : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    write_picture(path("x.png"), 48, 32, 0);
    write_picture(path("y.png"), 48, 32, 5);
  }
  Outcome drawn(const std::string& name, const std::string& more,
                const std::string& model = kPictureModel) {
    return run("generate --json -q --threads 1 --progress none --overwrite --seed 5 -p x " +
               std::string("--num-frames 5 --steps 2 --model ") + model + " -o " + path(name) +
               " " + more);
  }
  std::string hash(const Outcome& outcome) {
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.code ? "" : json::parse(outcome.out).at("framehash").get<std::string>();
  }
  json record(const std::string& name) {
    return json::parse(std::ifstream(path(name))).at("request");
  }
  // The path as records state it.
  std::string file(const std::string& name) {
    return fs::path(path(name)).lexically_normal().string();
  }
  std::string x() { return " --image " + path("x.png") + " "; }
};

TEST_F(ImageJob, TheRecordStatesThePixelsAndReplayTakesThem) {
  const std::string size = "--size 32x16";
  const std::string first = hash(drawn("a.mp4", size + x()));
  EXPECT_NE(first, hash(drawn("b.mp4", size + " --image " + path("y.png"))));
  const json request = record("a.mp4.json");
  EXPECT_EQ(request.at("image"), file("x.png"));
  EXPECT_EQ(request.at("image_fit"), "cover");
  const std::string pixels = request.at("image_sha256");
  EXPECT_EQ(pixels.size(), 64u);
  EXPECT_NE(pixels, record("b.mp4.json").at("image_sha256"));
  EXPECT_NE(first, hash(drawn("c.mp4", size + x() + "--image-fit stretch")));
  EXPECT_NE(first, hash(drawn("d.mp4", size + x() + "--last-image " + path("y.png"))));

  const Outcome again = run("replay -q --json " + path("a.mp4"));
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(json::parse(again.out).at("framehash"), first);
  // The file may lie elsewhere, but not be another picture.
  fs::rename(path("x.png"), path("z.png"));
  EXPECT_EQ(run("replay -q " + path("a.mp4")).code, 8);
  const Outcome moved = run("replay -q --json " + path("a.mp4") + " --image " + path("z.png"));
  ASSERT_EQ(moved.code, 0) << moved.err;
  EXPECT_EQ(json::parse(moved.out).at("framehash"), first);
  const Outcome other = run("replay -q " + path("a.mp4") + " --image " + path("y.png"));
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(other.err.find("whose pixels have the SHA-256"), std::string::npos) << other.err;
}

TEST_F(ImageJob, TheSizeFollowsFromThePicture) {
  const auto size = [&](const std::string& model, const std::string& picture) {
    const Outcome plan = run("generate --dry-run --json -q --model " + model +
                             " -p x --num-frames 5 --image " + picture);
    EXPECT_EQ(plan.code, 0) << plan.err;
    const json object = json::parse(plan.out);
    EXPECT_GT(object.at("encode_image_bytes"), 0);
    return std::pair{object.at("width").get<int>(), object.at("height").get<int>()};
  };
  write_picture(path("tall.png"), 30, 90, 1);
  EXPECT_EQ(size(kPictureModel, path("x.png")), (std::pair{768, 512}));
  EXPECT_EQ(size(kPictureModel, path("tall.png")), (std::pair{352, 1088}));
  EXPECT_EQ(size(kFirstFrame, path("x.png")), (std::pair{768, 512}));
}

TEST_F(ImageJob, AModelOfFirstFramesBeginsWithThePicture) {
  const std::string size = "--size 64x32";
  const std::string with = hash(drawn("a.mp4", size + x(), kFirstFrame));
  EXPECT_NE(with, hash(drawn("b.mp4", size, kFirstFrame)));
  for (const char* layout : {"cfg=2", "ring=2"})
    EXPECT_EQ(drawn("c.mp4", size + x() + "--ranks 2 --layout " + layout, kFirstFrame).code, 0);
}

TEST_F(ImageJob, WrongOnesAreRefusedByName) {
  std::ofstream(path("text.png")) << "no picture";
  const std::string size = "--size 32x16 ";
  for (const auto& [model, more, code, part] :
       {std::tuple{kPictureModel, size, 2, "makes a video from a picture; legal: image"},
        {test::kModel, size + x(), 2, "makes its videos from text alone; legal: no picture"},
        {kPictureModel, size + "--image " + path("none.png"), 8, "none.png"},
        {kPictureModel, size + "--image " + path("text.png"), 8, "text.png"},
        {kPictureModel, size + "--last-image " + path("x.png"), 2, "there is no first picture"},
        {kPictureModel, size + x() + "--image-fit tile", 2, "legal: cover|contain|stretch"}}) {
    const Outcome outcome = drawn("a.mp4", more, model);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
  }
}

TEST_F(ImageJob, LinesOfBatchesHaveTheirOwn) {
  std::ofstream(path("jobs.jsonl"))
      << json{{"id", "a"}, {"prompt", "x"}, {"image", path("x.png")}}.dump() << "\n"
      << json{{"id", "b"}, {"prompt", "x"}, {"image", path("y.png")}, {"image_fit", "contain"}}
             .dump()
      << "\n";
  const std::string batch = "batch " + path("jobs.jsonl") + " -q --threads 1 --model " +
                            kPictureModel + " --size 32x16 --num-frames 5 --steps 2 --seed 5 -o " +
                            path("out");
  const Outcome outcome = run(batch);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(record("out/b.mp4.json").at("image_fit"), "contain");
  EXPECT_EQ(record("out/a.mp4.json").at("image"), file("x.png"));
  // A job whose picture has changed is another job.
  write_picture(path("x.png"), 48, 32, 9);
  EXPECT_NE(run(batch).code, 0);
}

TEST_F(ImageJob, PlansNeedNoPicture) {
  const Outcome plan = run("plan --json --model " + kPictureModel +
                           " --size 64x64 --num-frames 9 --steps 2 --ranks 2 --layout ring=2");
  ASSERT_EQ(plan.code, 0) << plan.err;
  EXPECT_GT(json::parse(plan.out).at("stages").at("encode_image"), 0);
  const Outcome memory = run("inspect --json --memory 9x64x64 " + kPictureModel);
  ASSERT_EQ(memory.code, 0) << memory.err;
  EXPECT_TRUE(json::parse(memory.out).at("stages").contains("encode_image"));
  const Outcome model = run("inspect --json " + kPictureModel);
  ASSERT_EQ(model.code, 0) << model.err;
  EXPECT_EQ(json::parse(model.out).at("pictures"), (json{{"least", 1}, {"most", 2}}));
}

TEST_F(ImageJob, ReferencesAreFactsOfAJob) {
  write_picture(path("r.png"), 90, 70, 0);
  write_picture(path("s.png"), 70, 125, 3);
  const std::string two = "--reference " + path("r.png") + " --reference " + path("s.png");
  const std::string job =
      "generate --json -q --threads 1 --progress none --overwrite --seed 5 -p x "
      "--model " +
      kEditModel + " -o " + path("a.png") + " ";
  const Outcome drawn = run(job + two);
  const std::string first = hash(drawn);
  const json request = record("a.png.json");
  EXPECT_EQ(request.at("reference"), (json{file("r.png"), file("s.png")}));
  EXPECT_EQ(request.at("reference_sha256").size(), 2u);
  EXPECT_EQ(request.at("width"), 80);  // of the first one
  EXPECT_EQ(run(job + two + " --ranks 2 --layout layers=2").code, 0);
  EXPECT_NE(hash(run(job + "--reference " + path("s.png") + "," + path("r.png"))), first);
  EXPECT_EQ(hash(run(job + two)), first);
  EXPECT_NE(run(job + two + " --dry-run").out.find("\"reference_rows\""), std::string::npos);
  // A forecast counts their encoding apart from the loading of the encoder.
  const Outcome plan = run("plan --json -p x --model " + kEditModel + " " + two);
  ASSERT_EQ(plan.code, 0) << plan.err;
  const json stages = json::parse(plan.out).at("stages");
  EXPECT_GT(stages.at("encode_image").get<double>(), stages.at("decode").get<double>() / 10);
  // The files may lie elsewhere.
  fs::rename(path("r.png"), path("z.png"));
  EXPECT_EQ(run("replay -q " + path("a.png")).code, 8);
  const std::string moved = " --reference " + path("z.png") + "," + path("s.png");
  const Outcome again = run("replay -q --json " + path("a.png") + moved);
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(json::parse(again.out).at("framehash"), first);
  // A comma belongs to a file that is there.
  fs::rename(path("s.png"), path("s,2.png"));
  for (const std::string& list :
       {path("z.png") + "," + path("s,2.png"), path("z.png") + " --reference " + path("s,2.png")}) {
    EXPECT_EQ(hash(run(job + "--reference " + list)), first);
    EXPECT_EQ(record("a.png.json").at("reference"), (json{file("z.png"), file("s,2.png")}));
    EXPECT_EQ(run("replay -q " + path("a.png") + " --reference " + list).code, 0);
  }
  fs::rename(path("s,2.png"), path("s.png"));
  const Outcome fewer = run("replay -q " + path("a.png") + " --reference " + path("z.png"));
  EXPECT_EQ(fewer.code, 2);
  EXPECT_NE(fewer.err.find("was made with 2"), std::string::npos) << fewer.err;
  // Lines of batches have lists.
  std::ofstream(path("jobs.jsonl"))
      << json{{"id", "a"}, {"prompt", "x"}, {"reference", {path("z.png"), path("s.png")}}}.dump()
      << "\n"
      << json{{"id", "b"}, {"prompt", "x"}, {"reference", path("s.png")}}.dump() << "\n";
  const Outcome batch = run("batch " + path("jobs.jsonl") + " -q --threads 1 --model " +
                            kEditModel + " --seed 5 -o " + path("out"));
  ASSERT_EQ(batch.code, 0) << batch.err;
  EXPECT_EQ(record("out/a.png.json").at("reference_sha256"), request.at("reference_sha256"));
  EXPECT_EQ(record("out/b.png.json").at("reference"), json{file("s.png")});
}

// A run that was stopped goes on with its references, and with no others.
TEST_F(Resume, ReferencesComeAlong) {
  const std::string picture = path("r.png");
  write_picture(picture, 96, 80, 0);
  const auto job = [&](const std::string& name) {
    return "generate --json --progress json --threads 1 --checkpoint-every 0 --seed 5 -p x "
           "--model " +
           kEditModel + " --steps 400 --reference " + picture + " -o " + path(name);
  };
  Child uninterrupted = start(job("whole.png"));
  ASSERT_EQ(uninterrupted.wait(), 0) << uninterrupted.err();
  const auto whole = json::parse(uninterrupted.out()).at("framehash");
  Child child = start(job("a.png"));
  ASSERT_TRUE(child.says("\"stage\":\"denoise\",\"step\":3,"));
  child.signal(SIGINT);
  ASSERT_EQ(child.wait(), 130) << child.err();
  const std::string file = path("a.png.checkpoint.safetensors");
  write_picture(path("y.png"), 96, 80, 5);
  Child other = start("generate --json --resume " + file + " --reference " + path("y.png"));
  EXPECT_EQ(other.wait(), 2);
  EXPECT_NE(other.err().find("whose pixels have the SHA-256"), std::string::npos) << other.err();
  Child again = start("generate --json --resume " + file);
  EXPECT_EQ(again.wait(), 0) << again.err();
  EXPECT_EQ(json::parse(again.out()).at("framehash"), whole);
}

// A run that was stopped goes on with its picture, and with no other.
TEST_F(Resume, APictureComesAlong) {
  const std::string picture = path("x.png");
  write_picture(picture, 48, 32, 0);
  const auto job = [&](const std::string& model, const std::string& name) {
    return "generate --json --progress json --threads 1 --checkpoint-every 0 --seed 5 -p x "
           "--model " +
           model + " --size 64x32 --num-frames 9 --steps 200 --image " + picture + " -o " +
           path(name);
  };
  for (const std::string& model : {kPictureModel, kFirstFrame}) {
    Child uninterrupted = start(job(model, "whole.mp4"));
    ASSERT_EQ(uninterrupted.wait(), 0) << uninterrupted.err();
    const auto whole = json::parse(uninterrupted.out()).at("framehash");
    Child child = start(job(model, "a.mp4"));
    ASSERT_TRUE(child.says("\"stage\":\"denoise\",\"step\":3,"));
    child.signal(SIGINT);
    ASSERT_EQ(child.wait(), 130) << child.err();
    const std::string file = path("a.mp4.checkpoint.safetensors");
    write_picture(path("y.png"), 48, 32, 5);
    Child other = start("generate --json --resume " + file + " --image " + path("y.png"));
    EXPECT_EQ(other.wait(), 2);
    EXPECT_NE(other.err().find("whose pixels have the SHA-256"), std::string::npos) << other.err();
    Child again = start("generate --json --resume " + file);
    EXPECT_EQ(again.wait(), 0) << again.err();
    EXPECT_EQ(json::parse(again.out()).at("framehash"), whole);
    for (const char* name : {"whole.mp4", "whole.mp4.json", "a.mp4", "a.mp4.json"})
      fs::remove(path(name));
  }
}

}  // namespace
}  // namespace weft::test
