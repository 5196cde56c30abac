import {readdirSync, readFileSync, rmSync, writeFileSync} from 'node:fs'
import {join} from 'node:path'
import {gzipSync} from 'node:zlib'
import {defineConfig} from 'vite'

const out = 'dist/app'

// What is embedded is compressed once, here, and never again: the binary carries it so, and
// sends it so. Node writes no time into it, so that the same source gives the same bytes.
const compress = {
  name: 'headgate-compress',
  closeBundle() {
    for (const entry of readdirSync(out, {recursive: true, withFileTypes: true})) {
      if (!entry.isFile() || entry.name.endsWith('.gz')) continue
      const file = join(entry.parentPath, entry.name)
      writeFileSync(file + '.gz', gzipSync(readFileSync(file), {level: 9}))
      rmSync(file)
    }
  },
}

// The page brings its stylesheet with it, so that nothing else has to arrive before it is
// painted. The handler allows it by its hash.
const inlineStyle = {
  name: 'headgate-inline-style',
  transformIndexHtml: {
    order: 'post',
    handler(html, {bundle}) {
      if (!bundle) return html // the development server's has none yet
      const page = html.replace(/<link rel="stylesheet"[^>]* href="\.\/([^"]+)">/g, (_, name) => {
        const {source} = bundle[name]
        delete bundle[name]
        return `<style>${source}</style>`
      })
      // The handler allows the first style of a page, and only that.
      if (page.match(/<style|<link rel="stylesheet/g)?.length !== 1) this.error('the page has not exactly one style')
      return page
    },
  },
}

export default defineConfig({
  base: './', // it may be served below another path, by a proxy
  plugins: [inlineStyle, compress],
  server: {proxy: {'/api': 'http://127.0.0.1:9090'}},
  build: {
    outDir: out,
    target: 'es2023',
    assetsInlineLimit: 0, // the policy allows no data: address
    modulePreload: {polyfill: false}, // which would be an inline script
    reportCompressedSize: false,
  },
})
