// Walks through every call of the official JavaScript SDK for running code against one engine; run
// as a program, with E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY set. Prints one line per step
// that held.
import assert from 'node:assert/strict'
import { NotFoundError, Sandbox, TimeoutError } from '@e2b/code-interpreter'

const steps = {
  async theExampleOfItsReadme(box) {
    await box.runCode('x = 1')
    assert.equal((await box.runCode('x+=1; x')).text, '2')
  },
  async callbacks(box) {
    const heard = []
    const keep = (kind) => (said) => heard.push([kind, said.line ?? said.text ?? said.name])
    const code = 'import sys\nprint("out")\nprint("err", file=sys.stderr)\ndisplay(7)\n1 / 0'
    const ended = await box.runCode(code, {
      onStdout: keep('stdout'),
      onStderr: keep('stderr'),
      onResult: keep('result'),
      onError: keep('error'),
    })
    assert.deepEqual(Object.fromEntries(heard), {
      stdout: 'out\n', stderr: 'err\n', result: '7', error: 'ZeroDivisionError',
    })
    assert.deepEqual([ended.logs.stdout, ended.logs.stderr], [['out\n'], ['err\n']])
  },
  async errors(box) {
    const { error, results } = await box.runCode('def divide():\n    return 1 / 0\ndivide()')
    assert.deepEqual([error.name, error.value], ['ZeroDivisionError', 'division by zero'])
    assert.match(error.traceback, /line 2, in divide/)
    assert.deepEqual(results, [])
    await assert.rejects(box.runCode('1', { language: 'cobol' }), (refused) =>
      refused instanceof NotFoundError && /'cobol' is not supported; this sandbox runs bash,/.test(refused.message))
  },
  async richResults(box) {
    const { results } = await box.runCode(
      'from IPython.display import HTML, Markdown\ndisplay(HTML("<b>x</b>"))\ndisplay(Markdown("*x*"))\n{"a": [1, float("nan")]}')
    assert.deepEqual([results[0].html, results[1].markdown], ['<b>x</b>', '*x*'])
    assert.deepEqual([results[2].json, results[2].isMainResult], [{ a: [1, null] }, true])
    assert.ok(results[2].formats().includes('json'))
  },
  async languages(box) {
    assert.equal((await box.runCode('const n = 40; n + 2', { language: 'javascript' })).text, '42')
    const shell = await box.runCode('cd /tmp && pwd', { language: 'bash' })
    assert.deepEqual(shell.logs.stdout, ['/tmp\n'])
    const coloured = { language: 'bash', envs: { COLOUR: 'green' } }
    assert.deepEqual((await box.runCode('echo $COLOUR', coloured)).logs.stdout, ['green\n'])
  },
  async contexts(box) {
    const own = await box.createCodeContext({ cwd: '/tmp' })
    assert.deepEqual([own.language, own.cwd], ['python', '/tmp'])
    await box.runCode('mine = 1', { context: own })
    assert.equal((await box.runCode('mine', { context: own })).text, '1')
    assert.equal((await box.runCode('mine')).error.name, 'NameError')
    await box.restartCodeContext(own)
    assert.equal((await box.runCode('mine', { context: own })).error.name, 'NameError')
    assert.ok((await box.listCodeContexts()).some((one) => one.id === own.id))
    await box.removeCodeContext(own)
    assert.ok(!(await box.listCodeContexts()).some((one) => one.id === own.id))
    await assert.rejects(box.runCode('1', { context: own }), NotFoundError)
  },
  async timeLimits(box) {
    const own = await box.createCodeContext()
    await box.runCode('kept = 1', { context: own })
    await assert.rejects(box.runCode('while True: pass', { context: own, timeoutMs: 1000 }), TimeoutError)
    assert.equal((await box.runCode('kept', { context: own })).text, '1')
  },
  async sleepAndWake(box) {
    await box.runCode('kept = 7')
    await box.pause()
    const back = await Sandbox.connect(box.sandboxId, { timeoutMs: 600_000 })
    assert.equal((await back.runCode('kept')).text, '7')
  },
  async endings(box) {
    assert.ok(await box.kill())
    await assert.rejects(box.runCode('1'))
  },
}

const box = await Sandbox.create({ timeoutMs: 600_000 })
for (const [name, step] of Object.entries(steps)) {
  await step(box)
  console.log('held:', name)
}
process.exit(0)
