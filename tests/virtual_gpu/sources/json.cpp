// A reader of JSON, as far as the description of a node needs it.
#include "json.h"

#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace vgpu {

namespace {

class Parser {
  public:
    explicit Parser(const char *text) : at_(text) {}

    Json value() {
        skip_spaces();
        Json made;
        if (*at_ == '{') {
            read_record(made);
        } else if (*at_ == '[') {
            read_list(made);
        } else if (*at_ == '"') {
            made.kind = Json::Kind::TEXT;
            made.text = read_text();
        } else if (take("null")) {
            made.kind = Json::Kind::NOTHING;
        } else {
            made.kind = Json::Kind::NUMBER;
            made.value = read_number();
        }
        skip_spaces();
        return made;
    }

    void end() {
        if (*at_) throw std::runtime_error(std::string("text after the JSON value: ") + at_);
    }

  private:
    const char *at_;

    void skip_spaces() {
        while (*at_ && strchr(" \t\r\n", *at_)) at_++;
    }

    bool take(const char *word) {
        if (strncmp(at_, word, strlen(word)) != 0) return false;
        at_ += strlen(word);
        return true;
    }

    void expect(const char *word) {
        skip_spaces();
        if (!take(word)) throw std::runtime_error(std::string("expected ") + word + " at: " + at_);
    }

    double read_number() {
        if (take("true")) return 1;
        if (take("false")) return 0;
        char *end;
        double number = strtod(at_, &end);
        if (end == at_) throw std::runtime_error(std::string("no JSON value at: ") + at_);
        at_ = end;
        return number;
    }

    std::string read_text() {
        std::string text;
        for (at_++; *at_ && *at_ != '"'; at_++) {
            if (*at_ == '\\') at_++;  // only \" and \\ are used
            text += *at_;
        }
        expect("\"");
        return text;
    }

    void read_list(Json &list) {
        list.kind = Json::Kind::LIST;
        expect("[");
        skip_spaces();
        if (take("]")) return;
        do list.items.push_back(value());
        while (take(","));
        expect("]");
    }

    void read_record(Json &record) {
        record.kind = Json::Kind::RECORD;
        expect("{");
        skip_spaces();
        if (take("}")) return;
        do {
            skip_spaces();
            std::string name = read_text();
            expect(":");
            record.fields[name] = value();
        } while (take(","));
        expect("}");
    }
};

}  // namespace

const Json &Json::operator[](const std::string &name) const {
    static const Json nothing;
    auto field = fields.find(name);
    return field == fields.end() ? nothing : field->second;
}

double Json::number(const std::string &name, double otherwise) const {
    const Json &field = (*this)[name];
    return field.kind == Kind::NUMBER ? field.value : otherwise;
}

std::string Json::string(const std::string &name, const std::string &otherwise) const {
    const Json &field = (*this)[name];
    return field.kind == Kind::TEXT ? field.text : otherwise;
}

Json parse_json(const std::string &text) {
    Parser parser(text.c_str());
    Json value = parser.value();
    parser.end();
    return value;
}

std::string quoted(const std::string &text) {
    std::string out = "\"";
    for (char letter : text) {
        if (letter == '"' || letter == '\\') out += '\\';
        out += letter;
    }
    return out + '"';
}

}  // namespace vgpu
