// Forms as clients write them, well-formed and not.
#include "apps/serve/http/form_reader.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "apps/serve/http/upload_folder.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

std::string bytes_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Says what became of a form: "name=text" for each part, "name(file name|type)=bytes" for files, or
// the status of the refusal and its text.
std::string read_as(const std::string& boundary, const std::string& bytes,
                    const ServerLimits& limits = {}, size_t piece = std::string::npos) {
  static const UploadFolder folder(testing::TempDir());
  try {
    FormReader reader(boundary, limits, folder.path());
    for (size_t at = 0; at < bytes.size(); at += std::min(piece, bytes.size()))
      reader.put(std::string_view(bytes).substr(at, piece));
    std::string out;
    for (const FormPart& part : *reader.finish()) {
      out += part.name;
      if (part.file.empty()) {
        out += "=" + part.text + ";";
        continue;
      }
      const std::string held = bytes_of_file(part.file);
      EXPECT_EQ(part.sha256, sha256_hex(held));
      EXPECT_EQ(part.bytes, held.size());
      out += "(" + part.file_name + "|" + part.content_type + ")=" + held + ";";
    }
    return out;
  } catch (const FormRefused& refused) {
    return std::to_string(refused.status) + " " + refused.code + ": " + refused.what();
  }
}

const std::string kText = "Content-Disposition: form-data; name=\"a\"\r\n\r\n";

// A form of one part, whose header and content are given.
std::string one_part(const std::string& header, const std::string& content = "x") {
  return read_as("B", "--B\r\n" + header + "\r\n\r\n" + content + "\r\n--B--\r\n");
}

void expect_refusal(const std::string& answer, const std::string& status, const std::string& why) {
  EXPECT_TRUE(answer.starts_with(status)) << answer;
  EXPECT_NE(answer.find(why), std::string::npos) << answer;
}

TEST(FormReader, TextsAndFilesInTheirOrder) {
  const std::string form =
      "--B\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\na red\r\nball\r\n"
      "--B\r\nContent-Disposition: form-data; name=\"image[]\"; filename=\"one.png\"\r\n"
      "Content-Type: image/png\r\n\r\n\x89PNG\r\n--x\r\n--\r\n"
      "--B\r\nContent-Disposition: form-data; name=\"image[]\"; filename=\"two\"\r\n\r\n\r\n"
      "--B\r\nContent-Disposition: form-data; name=\"seconds\"\r\n\r\n4\r\n--B--\r\n";
  const std::string expected =
      "prompt=a red\r\nball;image[](one.png|image/png)=\x89PNG\r\n--x\r\n--;image[](two|)=;"
      "seconds=4;";
  EXPECT_EQ(read_as("B", form), expected);
  for (const size_t piece : {1, 2, 3, 7, 64}) EXPECT_EQ(read_as("B", form, {}, piece), expected);
}

TEST(FormReader, WhatStandsBeforeAndAfterIsIgnored) {
  EXPECT_EQ(read_as("B", "preamble\r\n--\r\n--B\r\n" + kText + "x\r\n--B--\r\nepilogue --B"),
            "a=x;");
  EXPECT_EQ(read_as("B", "--B \t\r\n" + kText + "x\r\n--B--"), "a=x;");
  EXPECT_EQ(read_as("B", "--B--"), "");  // a page with no fields
  EXPECT_EQ(read_as("B", "--B\r\n" + kText + "\r\n--B\r\n" + kText + "x--B-\r\n--B--"),
            "a=;a=x--B-;");
  // RFC 2046 lets a part without content end with the line of its header.
  EXPECT_EQ(read_as("B", "--B\r\n" + kText + "--B--"), "a=;");
}

TEST(FormReader, ForeignBoundariesAreContent) {
  EXPECT_EQ(read_as("--B'()+_,-./:=? B",
                    "----B'()+_,-./:=? B\r\n" + kText + "\r\n--B\r\n\r\n----B'()+_,-./:=? B--"),
            "a=\r\n--B\r\n;");
  EXPECT_EQ(read_as("B", "--B\r\n" + kText + "\r--B\n--B\r\n -–B\r\n--B--"),
            "a=\r--B\n--B\r\n -–B;");
}

TEST(FormReader, NamesAsClientsWriteThem) {
  const auto names = [](const std::string& parameters) {
    return one_part("content-disposition:form-data;" + parameters);
  };
  EXPECT_EQ(names("name=a"), "a=x;");
  EXPECT_EQ(names(" NAME = \"a b\" ; "), "a b=x;");
  EXPECT_EQ(names("filename=\"b.png\"; name=\"a\""), "a(b.png|)=x;");
  EXPECT_EQ(names("name=\"a;b=\"; filename=b.png"), "a;b=(b.png|)=x;");
  // HTML: %22, %0D and %0A alone are codes. Others quote with backslashes.
  EXPECT_EQ(names("name=\"a%22%0d%0A%41%\""), "a\"\r\n%41%=x;");
  EXPECT_EQ(names("name=a; filename=\"q\\\"q\\\\.png\""), "a(q\"q\\.png|)=x;");
  EXPECT_EQ(names("name=a; filename=\"C:\\new\\x.png\""), "a(C:\\new\\x.png|)=x;");
  EXPECT_EQ(names("name=a; filename=\"../../etc/passwd\""), "a(../../etc/passwd|)=x;");
  // RFC 5987, which goes before the plain name.
  EXPECT_EQ(names("name=a; filename=\"euro.png\"; filename*=UTF-8''%e2%82%ac.png"),
            "a(\xe2\x82\xac.png|)=x;");
  EXPECT_EQ(names("name*=utf-8'en'a%20b"), "a b=x;");
}

TEST(FormReader, PartsOfTypesThatNoTextHasAreFiles) {
  const std::string part = "Content-Disposition: form-data; name=a\r\nContent-Type: ";
  EXPECT_EQ(one_part(part + "image/png"), "a(|image/png)=x;");
  EXPECT_EQ(one_part(part + "Application/Octet-Stream"), "a(|Application/Octet-Stream)=x;");
  EXPECT_EQ(one_part(part + "text/plain; charset=utf-8"), "a=x;");
  EXPECT_EQ(one_part(part + "application/json"), "a=x;");
  EXPECT_EQ(one_part("Content-Transfer-Encoding: binary\r\nX-Other: \r\n" + part + "text/plain"),
            "a=x;");
}

// A page sends such a part for a file that its user did not choose.
TEST(FormReader, FilesThatWereNotChosenAreNoParts) {
  const std::string part = "Content-Disposition: form-data; name=a; filename=\"\"";
  EXPECT_EQ(one_part(part, ""), "");
  EXPECT_EQ(one_part(part, "x"), "a(|)=x;");
}

TEST(FormReader, MalformedPartsAreRefused) {
  const std::string named = "Content-Disposition: form-data; name=\"a\"";
  const auto refused = [](const std::string& header, const std::string& why) {
    expect_refusal(one_part(header), "400 invalid_request", why);
  };
  refused("", "has no name");
  refused("Content-Type: text/plain", "has no name");
  refused("Content-Disposition: form-data", "has no name");
  refused("Content-Disposition: form-data; name=\"\"", "has no name");
  refused("Content-Disposition: attachment; name=\"a\"", "'attachment', legal: form-data");
  refused(named + "; name=\"b\"", "states name twice");
  refused(named + "\r\n" + named, "two headers Content-Disposition");
  refused("Content-Disposition: form-data; name=\"a", "quotation mark is missing");
  refused("Content-Disposition: form-data; name=\"a\\\"", "quotation mark is missing");
  refused("Content-Disposition: form-data; name=\"a\"b", "text after a quotation mark");
  refused("Content-Disposition: form-data; name", "parameter without a value");
  refused("Content-Disposition: form-data; name=\"\xff\"", "not UTF-8");
  refused(named + "; filename*=latin1''a", "charset");
  refused(named + "\r\nContent-Transfer-Encoding: base64", "'base64', legal: none");
  refused(named + "\r\nno colon", "malformed");
  refused(named + "\r\n folded: line", "malformed");
  refused(named + "\nContent-Type: text/plain", "CR or LF alone");
  refused(named + "\rContent-Type: text/plain", "CR or LF alone");
  refused(named + std::string(1, '\0'), "control character");
  refused(named + "\r\nX: " + std::string(16 << 10, 'x'), "more than 16384 bytes");
  expect_refusal(one_part(named, "\xff"), "400 invalid_request", "text of 'a' is not UTF-8");
}

TEST(FormReader, MalformedFormsAreRefused) {
  const auto refused = [](const std::string& form, const std::string& why) {
    for (const size_t piece : {size_t{1}, std::string::npos})
      expect_refusal(read_as("B", form, {}, piece), "400 invalid_request", why);
  };
  refused("", "does not begin with its boundary");
  refused("--A\r\n" + kText + "x\r\n--A--", "does not begin with its boundary");
  refused("\n--B\n" + kText + "x\n--B--", "does not begin with its boundary");
  refused("--B\n" + kText + "x\n--B--", "not alone on its line");
  refused("--Bx\r\n" + kText + "x\r\n--B--", "not alone on its line");
  refused("--B\r\n" + kText + "x\r\n--B-\r\n", "not alone on its line");
  refused("--B" + std::string(300, ' ') + "\r\n" + kText + "x\r\n--B--", "256 spaces");
  refused("--B\r\n\r\n--B--", "has no name");
  refused("--B\r\nX: y\r\n--B: z\r\n" + kText + "x\r\n--B--", "boundary in its header");
  for (const char* begun : {"--B", "--B\r\n", "--B\r\nContent-"})
    refused(begun, "boundary at its end is missing");
  refused("--B\r\n" + kText + "x", "boundary at its end is missing");
  refused("--B\r\n" + kText + "x\r\n--B", "boundary at its end is missing");
  refused("--B\r\n" + kText + "x\r\n--B-", "boundary at its end is missing");
}

TEST(FormReader, LimitsSizesAndParts) {
  ServerLimits limits;
  limits.form_bytes = 400;
  limits.body_bytes = 20;
  limits.form_parts = 3;
  const auto file = [](size_t bytes) {
    return "--B\r\nContent-Disposition: form-data; name=f; filename=x\r\n\r\n" +
           std::string(bytes, 'x') + "\r\n";
  };
  const std::string text = "--B\r\n" + kText;
  for (const size_t piece : {size_t{1}, size_t{11}, std::string::npos}) {
    const auto answer = [&](const std::string& form) {
      return read_as("B", form + "--B--", limits, piece);
    };
    const size_t most = 400 - file(0).size() - 5;
    EXPECT_EQ(answer(file(most)), "f(x|)=" + std::string(most, 'x') + ";");
    expect_refusal(answer(file(most + 1)), "413 payload_too_large", "400 bytes");
    EXPECT_EQ(answer(text + std::string(19, 'x') + "\r\n"), "a=" + std::string(19, 'x') + ";");
    expect_refusal(answer(text + std::string(20, 'x') + "\r\n"), "413 payload_too_large",
                   "20 bytes in all");
    EXPECT_EQ(answer(file(1) + file(1) + file(1)), "f(x|)=x;f(x|)=x;f(x|)=x;");
    expect_refusal(answer(file(1) + file(1) + file(1) + file(1)), "413 payload_too_large",
                   "more than 3 parts");
  }
}

TEST(FormReader, RemovesFilesThatNobodyMoved) {
  const UploadFolder folder(testing::TempDir());
  const auto left = [&] {
    return std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator());
  };
  const ServerLimits limits;
  const std::string file = "--B\r\nContent-Disposition: form-data; name=f; filename=x\r\n\r\nx\r\n";
  {
    FormReader reader("B", limits, folder.path());
    reader.put(file + file);
    EXPECT_EQ(left(), 2);  // of a form that is not complete
  }
  EXPECT_EQ(left(), 0);
  const std::string moved = testing::TempDir() + "moved_form_file";
  {
    std::shared_ptr<const Form> form;
    {
      FormReader reader("B", limits, folder.path());
      reader.put(file + file + "--B--");
      form = reader.finish();
    }
    EXPECT_EQ(left(), 2);
    EXPECT_EQ(fs::status(form->front().file).permissions(),
              fs::perms::owner_read | fs::perms::owner_write);
    fs::rename(form->front().file, moved);
  }
  EXPECT_EQ(left(), 0);
  EXPECT_EQ(bytes_of_file(moved), "x");
  fs::remove(moved);
}

TEST(FormReader, ADiskThatFailsIsNoFaultOfTheClient) {
  const ServerLimits limits;
  FormReader reader("B", limits, testing::TempDir() + "no_such_folder");
  try {
    reader.put("--B\r\nContent-Disposition: form-data; name=f; filename=x\r\n\r\n");
    FAIL() << "a file was written to a folder that does not exist";
  } catch (const FormRefused& refused) {
    EXPECT_EQ(refused.status, 500);
    EXPECT_EQ(std::string(refused.what()).find("no_such_folder"), std::string::npos);
  }
}

TEST(FormBoundary, OfTheContentType) {
  EXPECT_EQ(form_boundary("multipart/form-data; boundary=abc"), "abc");
  EXPECT_EQ(form_boundary("Multipart/Form-Data;charset=utf-8; Boundary=\"a b:c\" "), "a b:c");
  EXPECT_EQ(form_boundary("multipart/form-data; boundary=----=_Part_1;"), "----=_Part_1");
  EXPECT_EQ(form_boundary("multipart/form-data; boundary=" + std::string(70, 'a')).size(), 70u);
  for (const std::string& type : std::vector<std::string>{
           "multipart/form-data", "multipart/form-data; boundary=",
           "multipart/form-data; boundary=\"\"", "multipart/form-data; boundary=\"a \"",
           "multipart/form-data; boundary=a\"b", "multipart/form-data; boundary=\xc3\xa4",
           "multipart/form-data; boundary=" + std::string(71, 'a'),
           "multipart/form-data; boundary=a; boundary=b", "multipart/form-data; boundary=\"a"})
    EXPECT_THROW(form_boundary(type), FormRefused) << type;
}

TEST(UploadFolder, RemovesThoseOfServersThatWereKilled) {
  const std::string parent = testing::TempDir() + "upload_folders/";
  fs::create_directories(parent + ".weft-uploads-killed");
  std::ofstream(parent + ".weft-uploads-killed/1.bin") << "left over";
  std::ofstream(parent + "other") << "kept";
  {
    const UploadFolder first(parent);
    EXPECT_FALSE(fs::exists(parent + ".weft-uploads-killed"));
    std::ofstream(first.path() + "/1.bin") << "in use";
    const UploadFolder second(parent);
    EXPECT_TRUE(fs::exists(first.path() + "/1.bin"));
    EXPECT_NE(first.path(), second.path());
    EXPECT_EQ(fs::status(first.path()).permissions(), fs::perms::owner_all);
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(parent), fs::directory_iterator()), 1);
  fs::remove_all(parent);
}

}  // namespace
}  // namespace weft
